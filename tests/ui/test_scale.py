"""A transcript of 50,000 events opens at once and scrolls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, Request, Route, expect

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
from tests.ui.hooks import Hook, find
from tests.ui.steps import probe, put_events

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

EVENTS = 50_000
OPENED_WITH = 200
PAGE = 500


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


class PageRequests:
    """The requests for pages of a transcript: how many events each asked for, how many at once."""

    def __init__(self, page: Page) -> None:
        self.limits: list[int] = []
        self.most_at_once = 0
        self._open: set[Request] = set()
        page.on("request", self._begin)
        page.on("requestfinished", self._end)
        page.on("requestfailed", self._end)

    def _begin(self, request: Request) -> None:
        if found := re.search(r"/events\?.*limit=(\d+)", request.url):
            self.limits.append(int(found[1]))
            self._open.add(request)
            self.most_at_once = max(self.most_at_once, len(self._open))

    def _end(self, request: Request) -> None:
        self._open.discard(request)


async def test_fifty_thousand_events_open_with_a_page_of_two_hundred(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page()
    asked = PageRequests(page)
    link = page.get_by_role("link", name="A long one")
    for times in (1, 2):
        await link.click()
        await page.get_by_text("The very last words.").wait_for()
        await expect(find(page, Hook.LIVENESS, state="live")).to_be_visible()
        assert asked.limits == [OPENED_WITH] * times
        assert 0 < await _items(page) <= OPENED_WITH
        assert await find(page, Hook.ROW).count() < 60
        await find(page, Hook.HOME).click()


async def test_it_scrolls_back_through_pages_that_are_loaded_on_the_way(
    open_page: OpenPage, long_session: Session
) -> None:
    page = await open_page(long_session)
    await page.get_by_text("The very last words.").wait_for()
    before = await _items(page)
    asked = PageRequests(page)
    told = await find(page, Hook.TRANSCRIPT).evaluate(probe("scroll"), 300)
    assert told["items"] > before * 2, "no earlier page was loaded"
    # a frame is short because little is in it, however far the reader scrolls
    assert set(asked.limits) == {PAGE}
    assert asked.most_at_once == 1
    assert told["most_rows"] < 80
    assert 0 < told["most_drawn"] < 80
    assert told["drawn"] <= 2 * told["items"], "rows are drawn again and again"
    await find(page, Hook.LATEST).click()
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
    transcript = find(page, Hook.TRANSCRIPT)
    # Within the first row: rows above the reader that are measured only now would carry him down,
    # and beyond a screenful no earlier page is asked for.
    await transcript.evaluate("el => { el.scrollTop = 40 }")
    before = await transcript.evaluate(probe("places"))
    arrives.set()
    await expect(transcript).not_to_have_attribute("data-items", str(before["items"]))
    after = await transcript.evaluate(probe("places"))
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
    await find(page, Hook.SEARCH).fill("nowhere-to-be-found")
    await expect(find(page, Hook.NOTHING_FOUND)).to_be_visible()


async def _items(page: Page) -> int:
    return int(await find(page, Hook.TRANSCRIPT).get_attribute("data-items") or 0)
