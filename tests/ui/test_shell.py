"""The page itself: quick, small, strict, usable by keyboard and at any width."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import SessionNotFound
from tests.support.running_stack import RunningStack
from tests.ui.conftest import MakeSession, OpenPage
from tests.ui.steps import UNTIL_LET_GO, let_go, probe, receipts, send

FIRST_SCREEN_MS = 300
JS_BYTES = 150_000


async def test_the_first_screen_is_there_in_300_ms_and_its_scripts_are_small(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page()
    best: dict[str, Any] = {"paint": float("inf")}
    for _ in range(10):  # the machine may be busy with something else
        await page.reload()
        await expect(page.get_by_role("button", name="New session").first).to_be_visible()
        told = await page.evaluate(probe("loaded"))
        best = min(best, told, key=lambda each: float(each["paint"]))
        if best["paint"] < FIRST_SCREEN_MS:
            break
    assert best["count"] > 10
    assert best["paint"] < FIRST_SCREEN_MS, best
    await page.evaluate(f"location.hash = '#/s/{session.id}'")
    await expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    assert (await page.evaluate(probe("loaded")))["scripts"] < JS_BYTES


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
    await expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard and help")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("n")
    await expect(page.get_by_role("dialog", name="New session")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search titles")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("c")
    await expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_has_a_name_and_enough_contrast(
    open_page: OpenPage, session: Session, scheme: str
) -> None:
    page = await open_page(session)
    await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    await send(page, "think about it\nwrite a to a.txt\nrun: seq 1 50; false\nsay **bold** `code`")
    await expect(receipts(page)).to_be_visible()
    await receipts(page).get_by_role("button").first.click()
    assert await page.evaluate(probe("nameless")) == []
    assert await page.evaluate(probe("faint")) == []


@pytest.mark.parametrize("width", [400, 900])
async def test_it_is_usable_at_this_width(
    open_page: OpenPage, session: Session, width: int
) -> None:
    page = await open_page(session, width=width)
    await send(page, "write narrow to narrow.txt")
    await expect(receipts(page)).to_be_visible()
    await _fits(page, width)
    await page.get_by_role("button", name="Files", exact=True).click()
    await expect(page.locator(".rows").get_by_text("narrow.txt")).to_be_visible()
    await expect(page.get_by_role("button", name="Kill it and watch")).to_be_visible()
    await _fits(page, width)
    if width < 720:
        await page.get_by_role("button", name="Sessions", exact=True).click()
        await expect(page.get_by_label("Search titles")).to_be_visible()
        await _fits(page, width)
    await page.get_by_role("button", name="New session").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await _fits(page, width)


async def _fits(page: Page, width: int) -> None:
    wide = await page.evaluate(
        "w => [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&"
        " e.getBoundingClientRect().right > w + 1 && !e.closest('.table, pre, .toolbar, .sr'))"
        ".map(e => e.className || e.tagName)",
        width,
    )
    assert wide == []


async def test_the_api_goes_and_comes_back_and_the_page_goes_on(
    open_page: OpenPage, stack: RunningStack, session: Session, hf: Holdfast
) -> None:
    page = await open_page(session, expects="Failed to load resource|ERR_|EventSource")
    await send(page, f"run: echo beat; {UNTIL_LET_GO}\nsay all told")
    await expect(page.locator("section.tool.running")).to_contain_text("beat")
    pid = stack.pid_of("api")
    process = await asyncio.create_subprocess_exec("kill", "-STOP", str(pid))
    await process.wait()
    process = await asyncio.create_subprocess_exec("kill", "-KILL", str(pid))
    await process.wait()
    await expect(page.get_by_role("alert")).to_contain_text("The api does not answer")
    await expect(page.get_by_role("alert")).to_have_count(0)
    await let_go(hf, session)
    await expect(page.locator("article.assistant").last).to_contain_text("all told")
    await expect(receipts(page)).to_have_count(1)
    await expect(page.locator("article.user")).to_have_count(1)


async def test_a_session_that_does_not_exist_is_told(open_page: OpenPage) -> None:
    page = await open_page(expects="404")
    await page.evaluate("location.hash = '#/s/00000000-0000-7000-8000-000000000000'")
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_role("link", name="All sessions").click()
    await expect(page.get_by_role("heading", name="Sessions that hold fast")).to_be_visible()


async def test_a_session_is_renamed_archived_found_again_and_deleted(
    open_page: OpenPage, hf: Holdfast, make_session: MakeSession
) -> None:
    session = await make_session(harness="pi", title="To be renamed")
    page = await open_page(session)
    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Rename").click()
    await page.get_by_role("textbox", name="Title", exact=True).fill("Limpet")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Limpet")).to_be_visible()
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
    await expect(page.get_by_role("heading", name="Sessions that hold fast")).to_be_visible()
    await expect(page.locator(".toasts")).to_contain_text("The session is deleted")
    with pytest.raises(SessionNotFound):
        await hf.sessions.get(session.id)


async def test_a_session_that_is_deleted_elsewhere_is_told_and_asked_for_no_more(
    open_page: OpenPage, hf: Holdfast, make_session: MakeSession
) -> None:
    session = await make_session(harness="pi", title="Soon gone")
    page = await open_page(session, expects="404")
    await expect(page.locator(".strip")).to_contain_text("Live")
    await hf.sessions.delete(session.id)
    await expect(page.get_by_text(f"There is no session {session.id}")).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.get_by_role("link", name="All sessions").click()
    await expect(page.get_by_role("heading", name="Sessions that hold fast")).to_be_visible()
    assert [url for url in asked if str(session.id) in url] == []
