"""The page itself: quick, small, strict, usable by keyboard and at any width."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import Page, Route, expect

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import SessionNotFound
from tests.support.running_stack import RunningStack
from tests.ui.conftest import AGENT, MakeSession, OpenPage
from tests.ui.hooks import Hook, find, selector
from tests.ui.steps import UNTIL_LET_GO, let_go, messages, probe, receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

JS_BYTES = 150_000


async def test_the_first_screen_waits_for_no_answer_and_its_scripts_are_small(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page()
    painted = asyncio.Event()
    held: list[str] = []

    async def hold(route: Route) -> None:
        if route.request.resource_type == "fetch":
            held.append(route.request.url)
            await painted.wait()
        await route.continue_()

    await page.route("**/*", hold)
    await page.reload()
    await expect(find(page, Hook.NEW_SESSION)).to_be_visible()
    await expect(find(page, Hook.WELCOME)).to_be_visible()
    loaded = await page.evaluate(probe("loaded"))
    assert held, "the page has asked the api for nothing: the test is blind"
    painted.set()
    assert loaded["count"] > 10
    # one script is named by the page; each of the others is fetched beside it, not after it
    assert loaded["late"] == []
    await page.evaluate(f"location.hash = '#/s/{session.id}'")
    await expect(find(page, Hook.PROMPT)).to_be_visible()
    assert (await page.evaluate(probe("loaded")))["bytes"] < JS_BYTES


async def test_all_scripts_together_are_under_150_kb_on_the_wire(stack: RunningStack) -> None:
    """Those too that are fetched only when they are needed."""
    from tests.ui.test_pure import STATIC

    headers = {"Authorization": f"Bearer {stack.token}", "Accept-Encoding": "gzip"}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, trust_env=False) as http:
        total = 0
        for path in STATIC.rglob("*.js"):
            async with http.stream("GET", f"/static/{path.relative_to(STATIC)}") as answer:
                assert answer.status_code == 200
                total += sum([len(chunk) async for chunk in answer.aiter_raw()])
    assert 50_000 < total < JS_BYTES


async def test_nothing_can_be_run_or_made_markup_of(open_page: OpenPage) -> None:
    page = await open_page(expects="Content Security Policy|Trusted")
    refused = await page.evaluate(probe("refused"))
    assert refused == {"markup": False, "inline": False}


async def test_the_keyboard_makes_searches_stops_and_helps(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await expect(find(page, Hook.PROMPT)).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard and help")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("n")
    await expect(page.get_by_role("dialog", name="New session")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await expect(find(page, Hook.SEARCH)).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("c")
    await expect(find(page, Hook.PROMPT)).to_be_focused()


@pytest.fixture(scope="module")
async def finished(stack: RunningStack) -> AsyncIterator[Session]:
    """A session with a turn of every kind of row, for tests that only look at it."""
    prompt = "think about it\nwrite narrow to narrow.txt\nrun: seq 1 50; false\nsay **bold** `code`"
    async with Holdfast(stack.url, stack.token) as client:
        made = await client.sessions.create(**AGENT, title="To be looked at")
        ended = [event.type async for event in client.turns.run(made.id, prompt)]
        assert ended[-1] == "turn.completed"
        yield made
        await client.sessions.delete(made.id)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_has_a_name_and_enough_contrast(
    open_page: OpenPage, finished: Session, scheme: str
) -> None:
    page = await open_page(finished)
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await expect(receipts(page)).to_be_visible()
    await receipts(page).get_by_role("button").first.click()
    assert await page.evaluate(probe("nameless")) == []
    assert await page.evaluate(probe("faint")) == []


@pytest.mark.parametrize("width", [400, 900])
async def test_it_is_usable_at_this_width(
    open_page: OpenPage, finished: Session, width: int
) -> None:
    page = await open_page(finished, width=width)
    await expect(receipts(page)).to_be_visible()
    await _fits(page, width)
    await page.get_by_role("button", name="Files", exact=True).click()
    await expect(find(page, Hook.FILE_ROWS).get_by_text("narrow.txt")).to_be_visible()
    await expect(find(page, Hook.KILL)).to_be_visible()
    await _fits(page, width)
    if width < 720:
        await page.get_by_role("button", name="Sessions", exact=True).click()
        await expect(find(page, Hook.SEARCH)).to_be_visible()
        await _fits(page, width)
    await find(page, Hook.NEW_SESSION).click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await _fits(page, width)


async def _fits(page: Page, width: int) -> None:
    scrolling = f"{selector(Hook.WIDE)}, pre, [role=toolbar]"
    assert await page.evaluate(probe("too_wide"), {"width": width, "scrolling": scrolling}) == []


async def test_the_api_goes_and_comes_back_and_the_page_goes_on(
    open_page: OpenPage, stack: RunningStack, session: Session, hf: Holdfast
) -> None:
    page = await open_page(session, expects="Failed to load resource|ERR_|EventSource")
    await send(page, f"run: echo beat; {UNTIL_LET_GO}\nsay all told")
    await expect(find(page, Hook.TOOL, state="running")).to_contain_text("beat")
    pid = stack.pid_of("api")
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    await expect(find(page, Hook.OFFLINE)).to_contain_text("The api does not answer")
    await expect(find(page, Hook.OFFLINE)).to_have_count(0)
    await let_go(hf, session)
    await expect(messages(page, "assistant").last).to_contain_text("all told")
    await expect(receipts(page)).to_have_count(1)
    await expect(messages(page, "user")).to_have_count(1)


async def test_a_session_that_does_not_exist_is_told(open_page: OpenPage) -> None:
    page = await open_page(expects="404")
    await page.evaluate("location.hash = '#/s/00000000-0000-7000-8000-000000000000'")
    await expect(page.get_by_role("alert")).to_be_visible()
    await find(page, Hook.ALL_SESSIONS).click()
    await expect(find(page, Hook.WELCOME)).to_be_visible()


async def test_a_session_is_renamed_archived_found_again_and_deleted(
    open_page: OpenPage, hf: Holdfast, make_session: MakeSession
) -> None:
    session = await make_session(harness="pi", title="To be renamed")
    page = await open_page(session)
    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Rename").click()
    await page.get_by_role("textbox", name="Title", exact=True).fill("Limpet")
    await page.keyboard.press("Enter")
    await expect(find(page, Hook.SESSION_TITLE)).to_have_text("Limpet")
    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Archive").click()
    await expect(page.get_by_role("link", name=re.compile("Limpet"))).to_have_count(0)
    await page.get_by_role("button", name="Archived").click()
    await expect(page.get_by_role("link", name=re.compile("Limpet"))).to_be_visible()
    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete this session?")
    await expect(dialog).to_contain_text("0 turns with 0 events")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(find(page, Hook.WELCOME)).to_be_visible()
    await expect(find(page, Hook.TOASTS)).to_contain_text("The session is deleted")
    with pytest.raises(SessionNotFound):
        await hf.sessions.get(session.id)


async def test_a_session_that_is_deleted_elsewhere_is_told_and_asked_for_no_more(
    open_page: OpenPage, hf: Holdfast, make_session: MakeSession
) -> None:
    session = await make_session(harness="pi", title="Soon gone")
    page = await open_page(session, expects="404")
    await expect(find(page, Hook.LIVENESS, state="live")).to_contain_text("Live")
    await hf.sessions.delete(session.id)
    await expect(page.get_by_text(f"There is no session {session.id}")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await find(page, Hook.ALL_SESSIONS).click()
    await expect(find(page, Hook.WELCOME)).to_be_visible()
    assert [url for url in asked if str(session.id) in url] == []
