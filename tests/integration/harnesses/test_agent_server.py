"""What the agent server says of itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from sidecar.harnesses import agent_server
from stack.install.tree import find_tree, harness_tree
from stack.settings import load_settings
from tests.support.requirements import missing


def test_the_agents_server_still_takes_a_token_on_its_command_line_alone() -> None:
    """When it learns to read one elsewhere, it is to have one: docs/adr/0004."""
    tree = find_tree(harness_tree(), load_settings().cache_root)
    if tree is None:
        missing("harnesses", "the harness tree is not installed: run `holdfast install`")
    program = tree / "bin" / Path(agent_server.BIN, "sandbox-agent").name
    told = subprocess.run(
        [str(program), "server", "--help"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    # The names of the options, however the text around them is laid out.
    assert set(re.findall(r"--[\w-]*token[\w-]*", told)) == {"--token", "--no-token"}
    assert not re.search(r"env\W+\w*token", told, re.IGNORECASE)
