"""The scripted model's commands in a real shell."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.scripted_model import CODEX, ask, call

NASTY = [
    "it's",
    "$(touch pwned)",
    "`touch pwned`",
    'a"; touch pwned; "',
    "-n",
    "%s %d",
    "\\n\n\t$HOME",
]


@pytest.mark.parametrize("content", NASTY)
def test_a_shell_writes_any_text_to_any_path_unchanged(content: str, tmp_path: Path) -> None:
    target = "dir 'x'/$(touch pwned)/-f.txt"
    quoted = json.dumps(content) if "`" in content else f"`{content}`"
    for prompt in (f"write {quoted} to `{target}`", f"append {quoted} to `{target}`"):
        arguments = call(ask(prompt, tools=CODEX)).arguments
        assert isinstance(arguments, dict)
        subprocess.run(["bash", "-c", arguments["cmd"]], cwd=tmp_path, check=True, timeout=10)
    assert (tmp_path / target).read_text() == content * 2
    assert not list(tmp_path.rglob("pwned"))
