"""Every route of /openapi.json, asked with what fits its description and what does not.

schemathesis makes it up, from a seed: the same in every run. FUZZ_EXAMPLES is how much of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from client import Holdfast
from tests.support.light_agent.tree import LIGHT
from tests.support.paths import ROOT
from tests.support.running_stack import RunningStack

EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "8")
WITHIN = 900.0
HOOKS = "tests.e2e.security.openapi_hooks"
# `positive_data_acceptance` is left out: a harness's name is any string to the description, and a
# 400 to the api when there is none of that name.
WITH_TOKEN = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("missing_required_header", "unsupported_method", "ignored_auth", "use_after_free"),
)
# The token comes by the environment: a command line is there for all to read.
CONFIG = """
[headers]
Authorization = "${FUZZED_AUTHORIZATION}"
"""


@dataclass(frozen=True)
class Fuzz:
    """One session with a turn and a file, on a running stack."""

    stack: RunningStack
    session_id: str
    turn_id: str
    schema: Path
    place: Path

    async def run(self, authorization: str, *options: str) -> str:
        """What schemathesis says; raises AssertionError when it found something."""
        config = self.place / "schemathesis.toml"
        config.write_text(CONFIG if authorization else "")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", f"--config-file={config}", "run"),
            *(str(self.schema), f"--url={self.stack.url}", "--seed=8", "--no-color"),
            *("--generation-deterministic", "--workers=1"),
            *(f"--max-examples={EXAMPLES}", "--request-timeout=60", "--warnings=off"),
            *("--suppress-health-check=all", "--phases=examples,coverage,fuzzing", *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.place,  # it leaves notes where it runs
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": HOOKS,
                "FUZZED_SESSION": self.session_id,
                "FUZZED_TURN": self.turn_id,
                "FUZZED_AUTHORIZATION": authorization,
            },
        )
        try:
            async with asyncio.timeout(WITHIN):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        text = output.decode()
        assert process.returncode == 0, text[-20_000:]
        return text


@pytest.fixture
async def fuzz(stack: RunningStack, hf: Holdfast, tmp_path: Path) -> AsyncIterator[Fuzz]:
    session = await hf.sessions.create(**LIGHT, title="fuzzed")
    events = [event async for event in hf.turns.run(session.id, "write hello to a.txt")]
    async with httpx.AsyncClient(trust_env=False) as http:
        bearer = {"Authorization": f"Bearer {stack.token}"}
        answer = await http.get(f"{stack.url}/openapi.json", headers=bearer)
    schema = tmp_path / "openapi.json"
    schema.write_bytes(answer.raise_for_status().content)
    yield Fuzz(stack, str(session.id), str(events[-1].turn_id), schema, tmp_path)
    await hf.sessions.delete(session.id)


@pytest.mark.timeout(WITHIN + 60)
async def test_whatever_is_asked_the_api_answers_as_it_says_and_never_with_a_5xx(
    fuzz: Fuzz, hf: Holdfast
) -> None:
    said = await fuzz.run(f"Bearer {fuzz.stack.token}", f"--checks={','.join(WITH_TOKEN)}")
    assert "Test cases:" in said, said
    # what was asked for may have been a turn, or a budget that is spent
    await hf.sessions.set_budget(fuzz.session_id, None)
    asked = hf.turns.run(fuzz.session_id, "read a.txt back", queue=True)
    events = [event async for event in asked]
    assert events[-1].type == "turn.completed", events[-1]


NO_DATA = "--checks=nothing_without_a_token,not_a_server_error"


@pytest.mark.timeout(WITHIN + 60)
async def test_without_a_token_there_is_no_data(fuzz: Fuzz) -> None:
    said = await fuzz.run("", NO_DATA)
    assert "Test cases:" in said, said


@pytest.mark.timeout(WITHIN + 60)
@pytest.mark.parametrize("authorization", ["Bearer not-the-token-0123456789", "Basic eDp5"])
async def test_with_another_token_there_is_no_data(fuzz: Fuzz, authorization: str) -> None:
    said = await fuzz.run(authorization, NO_DATA, "--phases=fuzzing", "--max-examples=2")
    assert "Test cases:" in said, said
