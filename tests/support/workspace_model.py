"""What a workspace must have, as a dict: what agents and users do to it, and what of it is certain
once its sandbox is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["file", "directory", "symlink"]

# A few names, so that they meet: a file may take the place of a directory, and so on.
NAMES = ("a", "b", "c ü", "d", "d/a", "d/b", "e", "e/f", "e/f/a")
FILE_MODES = (0o600, 0o640, 0o755)
DIRECTORY_MODES = (0o700, 0o755, 0o750)
TARGETS = ("a", "nowhere", "/etc/hostname")


@dataclass(frozen=True)
class Node:
    """`mode` is None where nobody can say it, and a directory is not `sure` that may be missing."""

    kind: Kind
    data: bytes = b""
    mode: int | None = None
    target: str = ""
    sure: bool = True


Tree = dict[str, Node]


def parents_of(path: str) -> list[str]:
    steps = path.split("/")
    return ["/".join(steps[:depth]) for depth in range(1, len(steps))]


def is_within(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


def files_of(tree: Mapping[str, Node]) -> dict[str, bytes]:
    """The objects that the store has of a tree: a link is an empty one."""
    return {path: node.data for path, node in tree.items() if node.kind != "directory"}


def move(tree: Tree, source: str, target: str) -> None:
    for path in [path for path in tree if is_within(path, source)]:
        tree[target + path[len(source) :]] = tree.pop(path)


def delete(tree: Tree, path: str) -> None:
    for each in [each for each in tree if is_within(each, path)]:
        del tree[each]


def put_parents(tree: Tree, path: str) -> None:
    for above in parents_of(path):
        tree.setdefault(above, Node("directory"))


def rebuild(stored: Mapping[str, bytes], proven: Mapping[str, Node], before: Tree) -> Tree:
    """What a new mount or a new copy shows: the bytes of the store, and of the last receipt what it
    says of them. A directory of `before` that nothing tells of may be there or not."""
    tree: Tree = {}
    for path, data in stored.items():
        put_parents(tree, path)
        known = proven.get(path)
        same = known is not None and known.kind != "directory" and known.data == data
        tree[path] = known if same and known is not None else Node("file", data)
    for path, node in (*proven.items(), *before.items()):
        if node.kind == "directory":
            sure = path in proven or path in tree
            known_mode = proven[path].mode if path in proven else None
            tree[path] = Node("directory", mode=known_mode, sure=sure)
    return tree


@dataclass(frozen=True)
class Change:
    """What an agent does next; the numbers choose among what it could do it to."""

    kind: str
    first: int
    second: int


# Those that are named twice happen twice as often.
AGENT_KINDS = (
    *("write", "write", "empty", "append", "rewrite", "rewrite"),
    *("rename", "delete", "chmod", "symlink", "mkdir"),
)


def change(tree: Tree, what: Change, fresh: Callable[[], str]) -> str:
    """Do it to the tree; the script that does it in a sandbox. Nothing where it cannot be done."""
    free = [name for name in NAMES if name not in tree and _has_place(tree, name)]
    files = sorted(path for path, node in tree.items() if node.kind == "file")
    data = fresh()
    match what.kind:
        case "write" | "empty":
            path = _pick(sorted({*free, *files}), what.first)
            if path is None:
                return ""
            written = b"" if what.kind == "empty" else data.encode()
            mode = tree[path].mode if path in tree else 0o644
            tree[path] = Node("file", written, mode)
            return f"printf %s '{written.decode()}' > '{path}'"
        case "append":
            path = _pick(files, what.first)
            if path is None:
                return ""
            tree[path] = replace(tree[path], data=tree[path].data + data.encode())
            return f"printf %s '{data}' >> '{path}'"
        case "rewrite":
            path = _pick([each for each in files if tree[each].data], what.first)
            if path is None:
                return ""
            new = data.encode() + tree[path].data[len(data) :]
            tree[path] = replace(tree[path], data=new)
            return (
                f"t=$(stat -c %y '{path}'); printf %s '{data}'"
                f" | dd of='{path}' conv=notrunc status=none; touch -d \"$t\" '{path}'"
            )
        case "rename":
            return _rename(tree, what, free, files)
        case "delete":
            path = _pick(sorted(tree), what.first)
            if path is None:
                return ""
            delete(tree, path)
            return f"rm -rf '{path}'"
        case "chmod":
            path = _pick([p for p in sorted(tree) if tree[p].kind != "symlink"], what.first)
            if path is None:
                return ""
            modes = FILE_MODES if tree[path].kind == "file" else DIRECTORY_MODES
            mode = modes[what.second % len(modes)]
            tree[path] = replace(tree[path], mode=mode)
            return f"chmod {mode:o} '{path}'"
        case "symlink":
            path = _pick(free, what.first)
            if path is None:
                return ""
            target = TARGETS[what.second % len(TARGETS)]
            tree[path] = Node("symlink", target=target)
            return f"ln -s '{target}' '{path}'"
        case _:
            path = _pick(free, what.first)
            if path is None:
                return ""
            tree[path] = Node("directory", mode=0o755)
            return f"mkdir '{path}'"


def _rename(tree: Tree, what: Change, free: Sequence[str], files: Sequence[str]) -> str:
    source = _pick(sorted(tree), what.first)
    if source is None:
        return ""
    over = [] if tree[source].kind == "directory" else files
    target = _pick([n for n in sorted({*free, *over}) if not is_within(n, source)], what.second)
    if target is None:
        return ""
    delete(tree, target)
    move(tree, source, target)
    return f"mv -fT '{source}' '{target}'"


def _pick(among: Sequence[str], number: int) -> str | None:
    return among[number % len(among)] if among else None


def _has_place(tree: Tree, path: str) -> bool:
    above = path.rpartition("/")[0]
    return not above or (above in tree and tree[above].kind == "directory")


def upload_places(tree: Tree) -> list[str]:
    """Where a user may put a file: nothing, or a file, is there, below directories alone."""
    return [
        name
        for name in NAMES
        if (name not in tree or tree[name].kind == "file")
        and all(tree[p].kind == "directory" for p in parents_of(name) if p in tree)
    ]


def free_places(tree: Tree) -> list[str]:
    return [name for name in upload_places(tree) if name not in tree]


def movable(tree: Tree) -> Iterable[str]:
    """What a user finds in the store too: files, links, and directories that have some."""
    full = {above for path in files_of(tree) for above in parents_of(path)}
    return sorted(path for path, node in tree.items() if node.kind != "directory" or path in full)
