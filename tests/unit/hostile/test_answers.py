"""Answers from inside a sandbox are parsed: what does not fit is an error of that sandbox."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import NotDurable, Unreachable
from sidecar.boxhost import answers, editor, mender, walker
from sidecar.boxhost.contract import MountSick
from sidecar.providers.base import Command, SandboxProcess, Status
from sidecar.providers.boxd import NoAnswer
from sidecar.providers.boxd_answers import ANSWERS, Refused, parse_head
from sidecar.providers.boxd_files import BoxdFiles
from sidecar.providers.boxd_sandbox import BoxdSandbox
from sidecar.workspace import edits, live, restore
from sidecar.workspace.barrier import Barrier, BarrierLimits, nobody
from sidecar.workspace.checkpoint import Copies, Piece
from sidecar.workspace.manifest import Entry, Manifest

ODD: list[Any] = [
    None, True, -1, 1e999, float("nan"), 1 << 80, "", "x", "\0", "../x", "/x", "a//b", "a/./b",
    [], [[]], [None], {}, {"a": 1},
]  # fmt: skip
LEAVES = st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FILE: dict[str, Any] = {
    "path": "src/a.py",
    "kind": "file",
    "size": 3,
    "sha256": "a" * 64,
    "md5": "b" * 32,
    "mode": 0o644,
    "mtime_ns": 1_700_000_000_000_000_000,
    "target": None,
}
LINK: dict[str, Any] = {
    "path": "link",
    "kind": "symlink",
    "size": None,
    "sha256": None,
    "mode": 0o777,
    "mtime_ns": 5,
    "target": "../elsewhere",
}
SETTLE: dict[str, Any] = {
    "token": "0123456789abcdef",
    "full": True,
    "entries": [FILE, LINK],
    "read": ["src/a.py"],
    "gone": ["old"],
    "odd": {"b\\xff": "its name cannot be kept"},
    "problems": [{"path": "src/b.py", "errno": 5, "reason": "Input/output error"}],
}
LISTED = {"name": "a", "kind": "file", "size": 3, "mtime": 5.5, "mtime_ns": 5_500_000_000}
MADE = {"kind": "file", "size": 3, "mtime": 5.5}
# What each script says when nobody has tampered with it, and what it was asked.
GOOD: dict[tuple[str, str], tuple[dict[str, Any], Any]] = {
    ("walk", "put"): ({"name": "n", "text": "t"}, {}),
    ("walk", "remove"): ({"name": "n"}, {}),
    ("walk", "own"): ({"uid": 1}, {}),
    ("walk", "fill"): ({"pieces": [], "uid": None}, {"taken": ["a"]}),
    ("walk", "scan"): ({"token": "", "held": []}, {"names": 3, "pending": 1, "gone": 1}),
    ("walk", "settle"): ({"sync_root": False}, SETTLE),
    ("walk", "listing"): (
        {"path": "", "after": "", "limit": 2},
        {"entries": [LISTED, {**LISTED, "name": "b"}], "upto": "b"},
    ),
    ("walk", "read"): ({"path": "a", "offset": 0, "size": 3}, {"data": "YWJj", "size": 3}),
    ("walk", "take"): (
        {"pieces": [{"path": p, "offset": 0, "size": 3} for p in ("a", "b")]},
        {"pieces": ["YWJj", None]},
    ),
    ("mend", "look"): ({}, {}),
    ("mend", "restore"): (
        {"entries": [], "ask": True, "grain_ns": 1},
        {"symlinks": 1, "modes": 2, "mtimes": 3, "directories": 4, "problems": {"a": "why"}},
    ),
    ("mend", "sweep_locks"): ({}, {"paths": [".git/index.lock"]}),
    ("edit", "begin"): ({"path": "a", "replace": True}, {"name": ".holdfast-upload-00"}),
    ("edit", "piece"): ({"path": "a", "name": "n", "offset": 0, "data": ""}, {}),
    ("edit", "abandon"): ({"path": "a", "name": "n"}, {}),
    ("edit", "finish"): ({"path": "a", "name": "n", "replace": True}, MADE),
    ("edit", "mkdir"): ({"path": "a"}, {**MADE, "kind": "directory", "size": None}),
    ("edit", "move"): ({"source": "a", "target": "b"}, MADE),
    ("edit", "delete"): ({"path": "a"}, {"files": 1, "directories": 0}),
}


def variants(good: Any) -> Iterator[Any]:
    """A good value with one thing in it that is odd, missing or too much."""
    yield from ODD
    if isinstance(good, dict):
        yield {**good, "more": 1}
        for name in good:
            yield {key: value for key, value in good.items() if key != name}
            for each in variants(good[name]):
                yield {**good, name: each}
    elif isinstance(good, list):
        yield good + good
        for number, item in enumerate(good):
            for each in variants(item):
                yield [*good[:number], each, *good[number + 1 :]]


def places(good: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value has parts, the whole of it first."""
    yield here
    if isinstance(good, dict | list):
        for name, part in good.items() if isinstance(good, dict) else enumerate(good):
            yield from places(part, (*here, name))


@st.composite
def tampered(draw: st.DrawFn, good: Any) -> Any:
    """A good value with any JSON in the place of one or two of its parts, or without them."""
    answer = copy.deepcopy(good)
    for place in draw(st.lists(st.sampled_from(list(places(good))), min_size=1, max_size=2)):
        if not place:
            return draw(JSON)
        inside = answer
        with contextlib.suppress(LookupError, TypeError):  # what it was in is something else now
            for name in place[:-1]:
                inside = inside[name]
            if draw(st.booleans()) and draw(st.booleans()):
                del inside[place[-1]]
            else:
                inside[place[-1]] = draw(JSON)
    return answer


def line_of(answer: Any) -> bytes:
    return json.dumps(answer).encode()


class Hostile:
    """A Link to a sandbox: parses as a real one does, and answers what it is told to."""

    def __init__(self, head: Any = None, body: Any = None) -> None:
        self.head = {} if head is None else head
        self.bodies: dict[str, Any] = {}
        self.body = body

    async def call(self, op: str, body: bytes = b"", **fields: Any) -> Any:
        data = b""
        if op in ("walk", "mend", "edit"):
            asked = json.loads(body)["op"]
            data = line_of({"ok": self.bodies.get(asked, self.body)})
        elif op == "exec":
            data = b"out"
        head = self.head
        if isinstance(head, dict) and "size" not in head:
            head = {**head, "size": len(data)}
        return parse_head(op, line_of(head)), data

    async def freeze(self, bound: float) -> None: ...

    async def thaw(self) -> None: ...


def parsed(tool: str, op: str, asked: dict[str, Any], answer: Any) -> dict[str, Any] | None:
    """None for what is refused as nonsense; every other error is one of the test's."""
    try:
        return answers.parse(tool, op, asked, line_of({"ok": answer}))
    except MountSick as sick:
        if sick.kind != "died":
            raise
        return None


def is_plain(path: str) -> bool:
    return "\0" not in path and {"", ".", ".."}.isdisjoint(path.split("/"))


# The scripts themselves


@pytest.mark.parametrize(("tool", "script"), [
    ("walk", walker.Walker), ("mend", mender.Mender), ("edit", editor.Editor),
])  # fmt: skip
def test_every_call_of_a_script_has_a_shape(tool: str, script: type) -> None:
    helpers = {"top", "walk", "directory", "reporting", "parent"}
    calls = {name for name in vars(script) if not name.startswith("_")} - helpers
    assert calls == {op for kind, op in answers.SHAPES if kind == tool}
    assert calls == {op for kind, op in GOOD if kind == tool}


def test_a_lock_whose_name_is_not_utf8_is_told_as_it_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / os.fsdecode(b"caf\xe9.lock")).touch()
    swept = mender.Mender(str(tmp_path)).sweep_locks()
    assert answers.parse("mend", "sweep_locks", {}, line_of({"ok": swept})) == {
        "paths": [".git/caf\\xe9.lock"]
    }


@pytest.mark.parametrize(("tool", "op"), GOOD)
def test_a_good_answer_is_taken_as_it_is(tool: str, op: str) -> None:
    asked, good = GOOD[tool, op]
    assert answers.parse(tool, op, asked, line_of({"ok": good})) == good


@pytest.mark.parametrize(("tool", "op"), GOOD)
def test_an_answer_with_one_odd_part_is_taken_or_an_error_of_the_workspace(
    tool: str, op: str
) -> None:
    asked, good = GOOD[tool, op]
    taken = [parsed(tool, op, asked, answer) for answer in variants(good)]
    assert taken.count(None) >= len(ODD) - 1  # an empty object is a good answer to some


@given(data=st.data())
def test_whatever_is_taken_of_a_settle_can_be_used(data: st.DataObject) -> None:
    seen = parsed("walk", "settle", {}, data.draw(tampered(SETTLE)))
    if seen is None:
        return
    paths = [entry["path"] for entry in seen["entries"]]
    assert len(set(paths)) == len(paths)
    for path in (*paths, *seen["read"], *seen["gone"], *(p["path"] for p in seen["problems"])):
        assert is_plain(path)
    for plain in seen["entries"]:
        assert Manifest.parse(Manifest("s", "t", 1, "e", (Entry(**plain),)).document)


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../../other/secret"},
        {"path": "/etc/passwd"},
        {"path": "a\0b"},
        {"path": "a/../b"},
        {"path": ""},
        {"path": "\ud800"},
        {"size": -1},
        {"size": 1e999},
        {"size": 1 << 63},
        {"size": True},
        {"size": None},
        {"mode": 0o10000},
        {"mode": -1},
        {"mtime_ns": 1 << 63},
        {"mtime_ns": float("nan")},
        {"sha256": "x"},
        {"sha256": None},
        {"kind": "socket"},
        {"kind": "directory"},
        {"target": "x"},
        {"more": 1},
    ],
    ids=repr,
)
def test_an_entry_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    answer = {**SETTLE, "entries": [{**FILE, **change}]}
    with pytest.raises(MountSick):
        answers.parse("walk", "settle", {}, line_of({"ok": answer}))


@pytest.mark.parametrize(
    "change",
    [
        {"entries": [FILE, FILE]},
        {"gone": ["src/a.py"]},
        {"gone": ["../x"]},
        {"read": ["/x"]},
        {"problems": [{"path": "..", "errno": 5, "reason": ""}]},
        {"token": "x"},
        {"full": 1},
    ],
    ids=repr,
)
def test_a_settle_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MountSick):
        answers.parse("walk", "settle", {}, line_of({"ok": {**SETTLE, **change}}))


@pytest.mark.parametrize(
    ("op", "asked", "answer"),
    [
        ("take", {"pieces": [{"size": 3}]}, {"pieces": []}),
        ("take", {"pieces": [{"size": 3}]}, {"pieces": ["YWJj", "YWJj"]}),
        ("take", {"pieces": [{"size": 2}]}, {"pieces": ["YWJj"]}),
        ("take", {"pieces": [{"size": 3}]}, {"pieces": ["YWJ"]}),
        ("take", {"pieces": [{"size": 3}]}, {"pieces": ["Y W J j"]}),
        ("read", {"size": 2}, {"data": "YWJj", "size": 3}),
        ("listing", {"limit": 1}, {"entries": [LISTED, LISTED], "upto": ""}),
        ("listing", {"limit": 1}, {"entries": [{**LISTED, "name": "a/b"}], "upto": ""}),
        ("listing", {"limit": 1}, {"entries": [{**LISTED, "name": ".."}], "upto": ""}),
        ("listing", {"limit": 1}, {"entries": [{**LISTED, "mtime": 1e999}], "upto": ""}),
    ],
)
def test_an_answer_to_another_question_is_refused(
    op: str, asked: dict[str, Any], answer: Any
) -> None:
    with pytest.raises(MountSick):
        answers.parse("walk", op, asked, line_of({"ok": answer}))


@pytest.mark.parametrize("seconds", [-1e18, -62_135_596_801, 0, 253_402_300_800, 1e18])
def test_a_file_of_any_time_can_be_listed(seconds: float) -> None:
    """The year 12000 is a time that any file may have, and that datetime cannot tell."""
    page = {"entries": [{**LISTED, "mtime": seconds}], "upto": ""}
    seen = answers.parse("walk", "listing", {"limit": 1}, line_of({"ok": page}))
    assert datetime.fromtimestamp(seen["entries"][0]["mtime"], UTC)


@given(
    answer=st.one_of(
        JSON,
        st.dictionaries(st.sampled_from(["ok", "error", "errno"]), JSON, min_size=1),
        st.fixed_dictionaries({"error": st.text(max_size=20), "errno": st.integers(0, 200)}),
    )
)
def test_an_error_of_a_script_is_told_whatever_it_is(answer: Any) -> None:
    with pytest.raises(MountSick) as told:
        answers.parse("walk", "scan", {}, line_of(answer))
    assert len(told.value.kind) < 20


@pytest.mark.parametrize("data", [b"", b"[" * 100_000, b"\xff", b'{"ok":', b'{"ok": {}, "ok": {}}'])
def test_what_is_no_json_is_an_error_of_the_workspace(data: bytes) -> None:
    with pytest.raises(MountSick) as told:
        answers.parse("walk", "scan", {}, data)
    assert told.value.kind == "died"


def test_an_answer_without_end_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 10)
    with pytest.raises(MountSick):
        answers.parse("mend", "look", {}, b'{"ok": {}}' + b" " * 10)


# Who asks the scripts


class NoManifests:
    bucket = "state"

    async def latest(self, session_id: str) -> None:
        return None

    async def edited(self, session_id: str, edit: object) -> None: ...


class Workspace:
    """As much of one as reading and changing files needs."""

    session_id = "s"
    manifests = NoManifests()
    engine = type("E", (), {"mtime_grain_ns": 1})

    def __init__(self, files: BoxdFiles) -> None:
        self.files = files

    async def sync(self) -> None: ...


async def _nothing() -> Any:
    return
    yield b""


async def _use(ask: Callable[[Any], Awaitable[object]], op: str, answer: Any) -> None:
    workspace = Workspace(BoxdFiles(cast(Any, Hostile(body=answer))))
    if op == "finish":
        workspace.files._boxd.bodies["begin"] = GOOD["edit", "begin"][1]  # type: ignore[attr-defined]
    await ask(workspace)


USERS: dict[str, tuple[Any, Callable[[Any], Awaitable[object]]]] = {
    "listing": (GOOD["walk", "listing"][1], lambda w: live.listing(w, "", 2)),
    "read": (GOOD["walk", "read"][1], lambda w: live.first_chunk(w, "a")),
    "take": (
        GOOD["walk", "take"][1],
        lambda w: Copies(w.files, cast(Any, None), "s", None)._take(
            [Piece("a", 0, 3), Piece("b", 0, 3)]
        ),
    ),
    "restore": (
        GOOD["mend", "restore"][1],
        lambda w: restore.restore(w.files, restore.Wanted(stored=True), ask=True, grain_ns=1),
    ),
    "sweep_locks": (GOOD["mend", "sweep_locks"][1], lambda w: restore.sweep_locks(w.files)),
    "begin": (GOOD["edit", "begin"][1], lambda w: edits.put(w, "a", _nothing(), replace=True)),
    "finish": (MADE, lambda w: edits.put(w, "a", _nothing(), replace=True)),
    "mkdir": (MADE, lambda w: edits.mkdir(w, "a")),
    "move": (MADE, lambda w: edits.move(w, "a", "b")),
    "delete": (GOOD["edit", "delete"][1], lambda w: edits.delete(w, "a")),
}


@pytest.mark.parametrize("op", USERS)
@given(data=st.data())
async def test_whoever_asks_a_script_gets_an_answer_or_an_error_of_the_workspace(
    op: str, data: st.DataObject
) -> None:
    good, ask = USERS[op]
    answer = data.draw(tampered(good))
    with contextlib.suppress(MountSick):
        await _use(ask, op, answer)


class EmptyStore:
    async def list(self, prefix: str) -> dict[str, Any]:
        return {}

    async def head(self, key: str) -> None:
        assert is_plain(key)

    async def sha256(self, key: str) -> str:
        return ""


def barrier_of(link: Hostile) -> Barrier:
    return Barrier(
        BoxdFiles(cast(Any, link)),
        cast(Any, EmptyStore()),
        cast(Any, NoManifests()),
        "s",
        "checkpoint",
        sync_root=False,
        held=nobody,
        limits=BarrierLimits(tries=2, pause=0),
    )


@given(data=st.data())
async def test_a_barrier_is_good_or_says_why_not_whatever_the_walker_answers(
    data: st.DataObject,
) -> None:
    link = Hostile()
    barrier = barrier_of(link)
    for _ in range(2):
        link.bodies["scan"] = data.draw(tampered(GOOD["walk", "scan"][1]))
        link.bodies["settle"] = data.draw(tampered({**SETTLE, "full": False}))
        look = await barrier.look()
        assert look.reason or look.missing or not link.bodies["settle"]["entries"]


@pytest.mark.parametrize("op", ["scan", "settle"])
@pytest.mark.parametrize("answer", [None, [], {}, {"names": 1e999}, {**SETTLE, "problems": [1]}])
async def test_a_turn_whose_walker_answers_nonsense_is_not_durable_with_a_reason(
    op: str, answer: Any
) -> None:
    """Which its turn tells as `receipt.failed`: every other error would be `internal`."""
    link = Hostile()
    link.bodies = {"scan": GOOD["walk", "scan"][1], "settle": SETTLE, op: answer}
    with pytest.raises(NotDurable) as told:
        await barrier_of(link).prove("t", 1)
    assert op in told.value.message


async def test_a_path_that_was_never_told_may_be_gone() -> None:
    link = Hostile()
    empty = {**SETTLE, "entries": [], "odd": {}, "problems": [], "read": []}
    link.bodies = {
        "scan": GOOD["walk", "scan"][1],
        "settle": {**empty, "full": False, "gone": ["never/seen"]},
    }
    assert (await barrier_of(link).look()).good


# boxd


PROCESS = {"token": "7:1234", "pid": 7, "argv": ["a", "b"], "memory": 5}
BOXD_ANSWERS: dict[str, tuple[dict[str, Any], Callable[[BoxdSandbox], Awaitable[object]]]] = {
    "processes": ({"processes": [PROCESS]}, BoxdSandbox.processes),
    "held": ({"inodes": [1, 2]}, BoxdSandbox.held),
    "exec": (
        {"stdout": 1, "exit_code": 0},
        lambda sandbox: sandbox.exec(Command(("true",))),
    ),
    "mounted": ({"mounted": True, "alive": True}, BoxdSandbox.mounted),
    "mount": ({"mounted": True, "alive": True}, lambda sandbox: sandbox.mount([], {})),
    "read": ({}, lambda sandbox: sandbox.read("a")),
    "pack": ({}, lambda sandbox: sandbox.pack([], [])),
    "write": ({}, lambda sandbox: sandbox.write("a", b"")),
    "kill": ({}, lambda sandbox: sandbox.kill([])),
}


class Alive:
    """A control plane that says of every sandbox that it runs."""

    async def status(self, sandbox_id: str) -> Status:
        return Status.RUNNING

    async def keepalive(self, sandbox_id: str) -> None: ...


def boxd_sandbox(link: Hostile) -> BoxdSandbox:
    return BoxdSandbox("box", {}, cast(Any, link), Alive())


class Guarded(Hostile):
    """As BySocket and ByHttp do: what does not parse is no answer."""

    async def call(self, op: str, body: bytes = b"", **fields: Any) -> Any:
        try:
            return await super().call(op, body, **fields)
        except ValueError as error:
            raise NoAnswer(str(error)) from error


@pytest.mark.parametrize("op", BOXD_ANSWERS)
async def test_an_answer_of_boxd_with_one_odd_part_is_a_result_or_unreachable(op: str) -> None:
    good, ask = BOXD_ANSWERS[op]
    await ask(boxd_sandbox(Guarded(good)))
    refused = 0
    for head in variants({**good, "size": 3 if op == "exec" else 0}):
        try:
            await ask(boxd_sandbox(Guarded(head)))
        except Unreachable:
            refused += 1
    assert refused >= len(ODD) - 1


@given(data=st.data())
async def test_what_boxd_says_of_processes_may_be_anything(data: st.DataObject) -> None:
    head = data.draw(tampered({"processes": [PROCESS, PROCESS]}))
    try:
        found = await boxd_sandbox(Guarded(head)).processes()
    except Unreachable:
        return
    assert all(isinstance(each, SandboxProcess) for each in found)
    assert all(0 < each.pid <= 1 << 22 and each.memory >= 0 for each in found)


async def test_the_path_of_a_program_need_not_be_utf8() -> None:
    head = {"processes": [{**PROCESS, "argv": ["a", "/usr/bin/caf\udce9"]}]}
    (found,) = await boxd_sandbox(Guarded(head)).processes()
    assert found.argv == ("a", "/usr/bin/caf\udce9")


@given(op=st.sampled_from(sorted(ANSWERS)), line=JSON.map(line_of) | st.binary(max_size=60))
def test_whatever_boxd_answers_is_an_answer_or_a_refusal(op: str, line: bytes) -> None:
    try:
        head = parse_head(op, line)
    except (ValueError, Refused):
        return
    assert 0 <= head["size"] <= ANSWERS[op].most_bytes


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b'{"size": ' + b"9" * 5000 + b"}",
        b'{"size": -1}',
        b'{"size": [1]}',
        b'{"size": {"a": 1}}',
        b'{"size": "1"}',
        b'{"size": true}',
        b'{"size": 1e999}',
        b'{"size": NaN}',
        b'{"size": 2000000000}',
        b"{}",
    ],
    ids=lambda line: line[:20].decode(),
)
def test_an_answer_of_boxd_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="read"):
        parse_head("read", line)


@given(error=JSON, kind=JSON | st.sampled_from(["missing", "large", "hang", "died"]))
def test_a_refusal_is_bounded_and_can_be_stored(error: Any, kind: Any) -> None:
    with pytest.raises(Refused) as told:
        parse_head("read", line_of({"error": error, "kind": kind}))
    message = str(told.value)
    assert len(message) <= 10 * 2000
    assert "\0" not in message
    message.encode()
    assert told.value.kind in ("", "missing", "large", "hang", "died")


def test_the_longest_base64_is_measured_as_it_decodes() -> None:
    for size in range(10):
        data = base64.b64encode(bytes(size)).decode()
        asked = {"size": size}
        assert answers.parse("walk", "read", asked, line_of({"ok": {"data": data, "size": 9}}))
        if size:
            with pytest.raises(MountSick):
                answers.parse(
                    "walk", "read", {"size": size - 1}, line_of({"ok": {"data": data, "size": 9}})
                )


# Manifests


MANIFEST = json.loads(Manifest("s", "t", 1, "weed", (Entry(**FILE), Entry(**LINK))).document)


@given(data=st.data())
def test_a_manifest_is_one_or_a_value_error(data: st.DataObject) -> None:
    document = line_of(data.draw(tampered(MANIFEST) | JSON))
    try:
        manifest = Manifest.parse(document)
    except ValueError:
        return
    assert Manifest.parse(manifest.document) == manifest


@pytest.mark.parametrize("document", [b"", b"[" * 100_000, b"[]", b'{"v": 1}', b'{"v": 2}'])
def test_what_is_no_manifest_is_a_value_error(document: bytes) -> None:
    with pytest.raises(ValueError, match="manifest of version 1"):
        Manifest.parse(document)


def test_each_part_of_a_manifest_has_its_type() -> None:
    assert Manifest.parse(line_of(MANIFEST))
    refused = 0
    for document in variants(MANIFEST):
        try:
            Manifest.parse(line_of(document))
        except ValueError:
            refused += 1
    assert refused > 10 * len(ODD)


def test_a_manifest_of_before_md5s_were_kept_is_read() -> None:
    old = {**MANIFEST, "entries": [{k: v for k, v in FILE.items() if k != "md5"}]}
    (entry,) = Manifest.parse(line_of(old)).entries
    assert entry.md5 is None
