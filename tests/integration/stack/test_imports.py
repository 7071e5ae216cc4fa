"""What short commands must not import, because it takes longer than they do."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHOW = """
import sys
{}
print("\\n".join(sys.modules))
"""
RUN = """
sys.argv[1:] = {}
from stack.cli import main
try:
    main()
except SystemExit:
    pass
"""


def imported(code: str) -> set[str]:
    """Names of packages, and of our own modules, that `code` imports."""
    done = subprocess.run(
        (sys.executable, "-c", SHOW.format(code)), check=True, capture_output=True, text=True
    )
    names = set(done.stdout.splitlines())
    return names | {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["--help"]])
def test_a_short_command_imports_little(words: list[str]) -> None:
    heavy = {"asyncio", "httpx", "client", "pydantic_settings", "fastapi", "boto3", "sidecar"}
    assert imported(RUN.format(words)) & {*heavy, "contracts.bodies", "contracts.events"} == set()


def test_the_program_that_ends_all_sandboxes_imports_no_vendor() -> None:
    heavy = {"fastapi", "acp", "boto3", "aioboto3", "aiohttp", "aiodocker", "httpx"}
    assert imported("import sidecar.stop_all") & heavy == set()


def test_a_sidecar_starts_without_the_models_of_the_agent_protocol() -> None:
    assert "acp" not in imported("import sidecar.__main__")
