"""Everything the embedded stack runs, found or installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stack.errors import InstallFailed
from stack.install.binaries import Node, find_node, find_postgres, find_weed
from stack.install.bubblewrap import install_bwrap, runnable_bwrap
from stack.install.geesefs import Geesefs, find_geesefs, install_geesefs
from stack.install.progress import Progress
from stack.install.tree import Tree, find_tree, harness_tree, install_tree, missing_programs
from stack.settings import Settings


@dataclass(frozen=True)
class Installed:
    node: Node
    bwrap: Path
    weed: Path
    postgres: Path
    geesefs: Geesefs
    tree: Tree

    def engine(self, wanted: str) -> tuple[str, str]:
        """The workspace engine that `wanted` comes to, and why."""
        if wanted != "auto":
            return wanted, f"HOLDFAST_WORKSPACE={wanted}"
        if self.geesefs.path is not None:
            return "geesefs", f"geesefs from {self.geesefs.why}"
        return "weed", f"no geesefs: {self.geesefs.why}"


def install_everything(settings: Settings, progress: Progress) -> Installed:
    """Find what is there, install what is missing.

    Raises:
        BinaryMissing: a program that comes with the Python packages is not there.
        InstallFailed: the harness tree could not be installed.
    """
    node = find_node(settings)
    tree = install_tree(harness_tree(), settings.cache_root, node, progress)
    if broken := missing_programs(harness_tree(), tree.path):
        raise InstallFailed(
            f"the harness tree {tree.path} lacks {', '.join(broken)}",
            hint=f"remove {tree.path} and run `holdfast install`",
        )
    return Installed(
        node,
        install_bwrap(settings),
        find_weed(settings),
        find_postgres(),
        install_geesefs(settings, progress),
        tree,
    )


def find_everything(settings: Settings) -> Installed:
    """What `install_everything` left, without installing anything.

    Raises:
        BinaryMissing: a program is not there.
        InstallFailed: the harness tree is not there.
    """
    tree = find_tree(harness_tree(), settings.cache_root)
    if tree is None:
        raise InstallFailed("the harness tree is not installed", hint="run `holdfast install`")
    return Installed(
        find_node(settings),
        runnable_bwrap(settings),
        find_weed(settings),
        find_postgres(),
        find_geesefs(settings),
        Tree(tree),
    )
