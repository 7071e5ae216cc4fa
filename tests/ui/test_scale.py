"""A transcript of 50,000 events opens at once and scrolls."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, Route, expect

from client import Holdfast
from contracts.bodies import Session
from contracts.events import (
    EventBase,
    Message,
    Receipt,
    ToolCall,
    ToolResult,
    TurnCompleted,
    TurnStarted,
)
from tests.support.running_stack import RunningStack
from tests.ui.conftest import OpenPage
from tests.ui.steps import probe, put_events

EVENTS = 50_000
OPENS_WITHIN = 1.0
# A frame that takes longer is seen as a jerk; a loaded machine is allowed some.
FRAME_MS = 150


def _many() -> list[EventBase]:
    events: list[EventBase] = [TurnStarted(harness="pi", provider="local")]
    number = 0
    while len(events) < EVENTS - 3:
        number += 1
        call = f"call-{number}"
        text = f"Step {number}: a paragraph with `code` and **weight**, long enough to wrap. " * 3
        events.append(Message(role="assistant", text=text))
        events.append(
            ToolCall(tool_call_id=call, title="bash", input={"command": f"echo {number}"})
        )
        output = f"\x1b[32m{number}\x1b[0m\n" * (number % 30)
        events.append(ToolResult(tool_call_id=call, status="completed", output=output))
    events.append(Message(role="assistant", text="The very last words."))
    proof = {"engine": "weed", "files": 1, "bytes": 1, "manifest_sha256": "0" * 64, "took": 0.1}
    events.append(Receipt(**proof))
    events.append(TurnCompleted())
    return events


@pytest.fixture(scope="module")
async def long_session(stack: RunningStack) -> AsyncIterator[Session]:
    async with Holdfast(stack.url, stack.token) as client:
        session = await client.sessions.create(harness="pi", title="A long one")
        await put_events(stack, session, _many())
        yield session
        await client.sessions.delete(session.id)


async def test_fifty_thousand_events_open_in_under_a_second(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page()
    link = page.get_by_role("link", name="A long one")
    took = [OPENS_WITHIN]
    while min(took) >= OPENS_WITHIN and len(took) < 10:  # the machine may be busy otherwise
        await expect(link).to_be_visible()
        started = time.perf_counter()
        await link.click()
        await page.get_by_text("The very last words.").wait_for()
        took.append(time.perf_counter() - started)
        await page.get_by_role("link", name="Holdfast").click()
    assert min(took) < OPENS_WITHIN, took
    await link.click()
    await page.get_by_text("The very last words.").wait_for()
    rows = page.locator(".vrow")
    assert await rows.count() < 60


async def test_it_scrolls_back_through_pages_that_are_loaded_on_the_way(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page(long_session)
    await page.get_by_text("The very last words.").wait_for()
    before = await _items(page)
    told = await page.evaluate(probe("scroll"), 300)
    assert told["items"] > before * 2, "no earlier page was loaded"
    smooth = [told["p95"]]
    while min(smooth) >= FRAME_MS and len(smooth) < 5:  # the machine may be busy otherwise
        smooth.append((await page.evaluate(probe("scroll"), 100))["p95"])
    assert min(smooth) < FRAME_MS, smooth
    assert await page.locator(".vrow").count() < 80
    await page.get_by_role("button", name="Latest").click()
    await expect(page.get_by_text("The very last words.")).to_be_in_viewport()


async def test_what_is_being_read_stays_in_place_while_earlier_pages_arrive(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page(long_session)
    await page.get_by_text("The very last words.").wait_for()
    arrives = asyncio.Event()

    async def held(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    await page.route(re.compile("/events.*before="), held)
    list_ = page.locator(".vlist")
    await list_.evaluate("el => { el.scrollTop = 450 }")
    before = await page.evaluate(probe("places"), 0)
    arrives.set()
    after = await page.evaluate(probe("places"), before["items"])
    assert after["items"] > before["items"]
    seen = before["places"].keys() & after["places"].keys()
    assert seen
    assert max(abs(after["places"][seq] - before["places"][seq]) for seq in seen) <= 2


async def test_a_search_finds_a_word_of_the_transcript_and_opens_there(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page()
    await page.keyboard.press("/")
    await page.keyboard.type("very last words")
    found = page.get_by_role("link", name="A long one")
    await expect(found.locator("mark").first).to_be_visible()
    await found.click()
    await expect(page.get_by_text("The very last words.").last).to_be_in_viewport()
    await page.get_by_label("Search titles").fill("nowhere-to-be-found")
    await expect(page.get_by_text("Nothing found")).to_be_visible()


async def _items(page: Page) -> int:
    return int(await page.locator(".vlist").get_attribute("data-items") or 0)
