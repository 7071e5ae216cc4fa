"""What a person does in the page, and what is put into a session for them to see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

from playwright.async_api import Locator, Page, expect

from api.db import transcript
from api.db.pool import open_database
from client import Holdfast
from contracts.bodies import Session
from contracts.events import EventBase
from tests.support.running_stack import RunningStack
from tests.ui.hooks import Hook, find

# A harness starts in some seconds, and this machine may be busy with other things.
SECONDS = 120.0
MS = SECONDS * 1000

expect.set_options(timeout=MS)


async def send(page: Page, prompt: str) -> None:
    """Write a prompt and send it by the keyboard."""
    await find(page, Hook.PROMPT).fill(prompt)
    await find(page, Hook.PROMPT).press("Enter")


# A command of a turn that goes on until the test has seen enough.
UNTIL_LET_GO = "until test -e go; do sleep 0.1; done"


async def let_go(hf: Holdfast, session: Session) -> None:
    await hf.files.put(session.id, "go", b"go")


def receipts(page: Page) -> Locator:
    return find(page, Hook.RECEIPT)


def messages(page: Page, role: str) -> Locator:
    return find(page, Hook.MESSAGE, role=role)


def composer(page: Page) -> Locator:
    return find(page, Hook.COMPOSER)


async def choose(page: Page, label: str, value: str) -> None:
    await composer(page).get_by_label(label).select_option(value)


def probe(name: str) -> str:
    """A function that looks at something inside of the page."""
    return (Path(__file__).parent / "probes" / f"{name}.js").read_text()


TURN = """
INSERT INTO turns (id, session_id, epoch, state, prompt, harness, provider, permissions, accepted,
                   first_seq, last_seq, ended_at)
VALUES ($1, $2, $3, 'completed', $4, 'pi', 'local', 'auto', true,
        $5::bigint, $5::bigint - 1, now())
"""
EPOCH = "UPDATE sessions SET epoch = epoch + 1 WHERE id = $1 RETURNING epoch, last_seq"
BATCH = 5000


async def put_events(stack: RunningStack, session: Session, events: Sequence[EventBase]) -> UUID:
    """Put events into a session's transcript as a turn of their own, as the api stores them.

    For what no harness would produce in the time of a test.
    """
    run = stack.env["HOLDFAST_RUN_DIR"]
    turn_id = uuid4()
    async with open_database(f"postgresql://postgres@/holdfast?host={run}/postgres") as database:
        async with database.transaction() as conn:
            row = await conn.fetchrow(EPOCH, session.id)
            assert row is not None
            epoch, last_seq = row["epoch"], row["last_seq"]
            prompt = json.dumps("put there by a test").encode()
            await conn.execute(TURN, turn_id, session.id, epoch, prompt, last_seq + 1)
        for start in range(0, len(events), BATCH):
            async with database.transaction() as conn:
                place = await transcript.lock(conn, turn_id, epoch)
                assert place is not None
                batch = [transcript.prepare(event) for event in events[start : start + BATCH]]
                await transcript.append(conn, turn_id, place, batch)
    return turn_id
