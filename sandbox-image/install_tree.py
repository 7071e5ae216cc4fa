"""Run while the image is built: Node to /opt/node, the harness tree to /opt/harness."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from stack.install.binaries import Node, find_node
from stack.install.progress import Silent
from stack.install.tree import harness_tree, install_tree
from stack.settings import load_settings

CACHE = Path("/opt/cache")
HARNESS = Path("/opt/harness")
NODE = Path("/opt/node")


def main() -> None:
    wheel = find_node(load_settings())
    install_node(wheel)
    npm = NODE / "bin" / "npm"
    node = Node(NODE / "bin" / "node", (str(npm),), wheel.version, "image")
    tree = install_tree(harness_tree(), CACHE, node, Silent())
    # The cache is the builder's own, and stays there: with the same lock, npm runs once.
    shutil.copytree(tree.path, HARNESS, symlinks=True)
    for name, version in tree.versions.items():
        sys.stdout.write(f"{name}: {version}\n")
    sys.stdout.write(f"Node {node.version}, harness tree {tree.path.name}\n")


def install_node(wheel: Node) -> None:
    """Node and its npm without the headers, which are for building Node's own add-ons."""
    modules = NODE / "lib" / "node_modules"
    (NODE / "bin").mkdir(parents=True)
    shutil.copy2(wheel.path, NODE / "bin" / "node")
    shutil.copytree(wheel.path.parent.parent / "lib" / "node_modules" / "npm", modules / "npm")
    for name in ("npm", "npx"):
        script = modules / "npm" / "bin" / f"{name}-cli.js"
        script.chmod(0o755)
        (NODE / "bin" / name).symlink_to(Path("..") / script.relative_to(NODE))


if __name__ == "__main__":
    main()
