"""Secrets that a process knows do not stand in its log, in events, or in what it says when it
fails."""

from __future__ import annotations

import importlib
import io
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings

from contracts import events
from contracts.redaction import MASK, RedactingFormatter, Redactor, secrets_of
from sidecar.runs.bounds import Bounds
from sidecar.runs.joined import Joined
from tests.support.hostile_agent import Hearing, HostileAgent, notification, text
from tests.support.secrets import OTHER, SECRET, is_clean
from tests.unit.repository.test_env_example import SETTINGS


@pytest.mark.parametrize("at", range(len(SECRET) + 1))
async def test_a_secret_that_is_cut_in_two_by_the_stream_is_masked(
    agent: HostileAgent, short_dir: Path, at: int
) -> None:
    agent.update(**text(f"it is {SECRET[:at]}"))
    agent.update(**text(f"{SECRET[at:]}, I think"))
    agent.end()
    hearing = Hearing(short_dir, short_dir / "agent", secrets=[SECRET])
    assert await hearing.heard() == "end_turn"
    said = "".join(event["text"] for event in hearing.events())
    assert said == f"it is {MASK}, I think"


async def test_a_secret_is_masked_wherever_a_tool_prints_it(
    agent: HostileAgent, short_dir: Path
) -> None:
    call = {"toolCallId": "c", "title": f"echo {SECRET}"}
    agent.update(sessionUpdate="tool_call", **call, rawInput={"cmd": [f"echo {SECRET}"]})
    for half in (SECRET[:7], SECRET[7:]):
        meta = {"terminal_output_delta": {"data": half}}
        agent.update(sessionUpdate="tool_call_update", toolCallId="c", _meta=meta)
    agent.update(sessionUpdate="tool_call_update", toolCallId="c", status="completed")
    agent.update(
        sessionUpdate="tool_call_update", toolCallId="d", status="failed", rawOutput={"o": SECRET}
    )
    agent.say({"method": f"raw {SECRET}", "params": {SECRET: [SECRET]}})
    agent.end()
    hearing = Hearing(short_dir, short_dir / "agent", secrets=[SECRET])
    assert await hearing.heard() == "end_turn"
    written = hearing.journal.path.read_text()
    assert is_clean(written)
    deltas = "".join(each.get("output_delta", "") for each in hearing.events())
    assert deltas == MASK
    assert written.count(MASK) >= 7


async def test_text_is_held_back_no_longer_than_until_the_next_piece(short_dir: Path) -> None:
    said: list[tuple[str, int | None]] = []

    async def emit(event: events.EventBase, number: int | None) -> None:
        assert isinstance(event, events.Message)
        said.append((event.text, number))

    joined = Joined(emit, Redactor([SECRET]))
    pieces = ["plain ", "and h", "f-01", "no secret"]
    for number, piece in enumerate(pieces, start=1):
        await joined.add(events.Message(role="assistant", text=piece), number)
        await joined.flush_due()
    assert said == [("plain ", 1), ("and hf-01no secret", 4)]


@given(
    pieces=st.lists(st.sampled_from([SECRET[:5], SECRET[5:], SECRET, OTHER[:3], OTHER[3:], "x"])),
    due=st.sets(st.integers(0, 30)),
)
async def test_no_way_of_cutting_shows_a_secret_or_loses_a_word(
    pieces: list[str], due: set[int]
) -> None:
    said: list[str] = []

    async def emit(event: events.EventBase, number: int | None) -> None:
        assert isinstance(event, events.Message)
        said.append(event.text)

    redactor = Redactor([SECRET, OTHER])
    joined = Joined(emit, redactor)
    for number, piece in enumerate(pieces):
        await joined.add(events.Message(role="assistant", text=piece), number)
        if number in due:
            await joined.flush_due()
    await joined.flush()
    whole = "".join(said)
    assert is_clean(whole)
    assert whole.count("x") == "".join(pieces).count("x")


def test_a_log_line_and_its_traceback_show_no_secret() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(RedactingFormatter(logging.Formatter("%(message)s"), Redactor([SECRET])))
    logger = logging.getLogger("tests.hostile.redaction")
    logger.addHandler(handler)
    try:
        int(f"no number: {SECRET}")
    except ValueError:
        logger.exception("with %s and %r", SECRET, {"key": SECRET})
    finally:
        logger.removeHandler(handler)
    assert is_clean(out.getvalue())
    assert out.getvalue().count(MASK) == 3


def test_the_password_of_an_address_is_a_secret_and_the_rest_of_it_is_not() -> None:
    class Settings(BaseModel):
        database_url: SecretStr
        token: SecretStr
        name: str = "no secret"

    found = secrets_of(
        Settings(
            database_url=SecretStr("postgresql://me:p%40ssword1@db/holdfast"),
            token=SecretStr(SECRET),
        )
    )
    assert found == ["p@ssword1", SECRET]


SECRET_WORDS = ("secret", "token", "password", "_key")
# Names that hold such a word and no secret.
NO_SECRETS = {"access_key", "api_token_file", "sessions_per_token"}


@pytest.mark.parametrize("module", SETTINGS)
def test_every_setting_that_is_a_secret_is_kept_as_one(module: str) -> None:
    for settings in vars(importlib.import_module(module)).values():
        if not isinstance(settings, type) or not issubclass(settings, BaseSettings):
            continue
        if settings is BaseSettings:
            continue
        assert settings.model_config.get("hide_input_in_errors"), settings
        for name, field in settings.model_fields.items():
            if any(word in name for word in SECRET_WORDS) and name not in NO_SECRETS:
                assert "SecretStr" in str(field.annotation), f"{module}.{settings.__name__}.{name}"


async def test_what_is_masked_costs_little(agent: HostileAgent, short_dir: Path) -> None:
    """As many secrets as a busy sidecar knows, and events of megabytes, within the turn's bound."""
    secrets = [f"{number:04}-{SECRET}" for number in range(200)]
    for _ in range(10):
        agent.say(notification(**text("x" * 1_000_000 + secrets[7])))
    agent.end()
    hearing = Hearing(short_dir, short_dir / "agent", secrets=secrets, bounds=Bounds())
    assert await hearing.heard() == "end_turn"
    said: Any = "".join(event["text"] for event in hearing.events())
    assert said == ("x" * 1_000_000 + MASK) * 10
