"""Turns in the page: made, watched, reloaded, followed, stopped, killed and gone on with."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from tests.ui.conftest import MakeSession, OpenPage
from tests.ui.steps import UNTIL_LET_GO, choose, composer, let_go, receipts, send

HARNESSES = ("claude", "codex", "opencode", "pi")


async def test_a_session_is_made_in_the_form_and_named_by_its_first_prompt(
    open_page: OpenPage,
) -> None:
    page = await open_page()
    await expect(page.get_by_role("heading", name="Sessions that hold fast")).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New session")
    await dialog.get_by_role("radio", name=re.compile("^pi")).check()
    await expect(dialog.get_by_label("Permissions")).to_have_value("auto")
    await expect(dialog.get_by_role("option", name=re.compile("cannot ask"))).to_be_disabled()
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(re.compile(r"#/s/[0-9a-f-]{36}$"))
    await send(page, "say first words of a tale")
    await expect(page.get_by_role("heading", name="first words of a tale")).to_be_visible()
    await expect(page.get_by_role("link", name=re.compile("first words"))).to_be_visible()
    await expect(receipts(page)).to_contain_text("Safe in the store")


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_turn_with_each_harness_is_watched_to_its_receipt(
    open_page: OpenPage, make_session: MakeSession, harness: str
) -> None:
    session = await make_session(harness=harness)
    page = await open_page(session)
    await send(page, f"write made by {harness} to made.txt\nrun: sha256sum made.txt")
    strip = page.locator(".strip")
    await expect(strip).to_contain_text("Not yet safe")
    await expect(receipts(page)).to_contain_text("Safe in the store 1 file")
    await expect(strip).to_contain_text("Safe")
    await expect(strip.locator(".safe")).to_have_class("safe good")
    line = page.locator(".line").first
    await expect(line).to_contain_text("new sandbox on local")
    await expect(line).to_contain_text("mounted by")
    tools = page.locator("section.tool")
    await expect(tools.last).to_contain_text(re.compile("[0-9a-f]{64}"))
    await expect(page.get_by_label("Files").get_by_text("made.txt").first).to_be_visible()
    await receipts(page).get_by_role("button").first.click()
    await expect(receipts(page)).to_contain_text("1 file changed in this turn")


async def test_a_reload_in_the_middle_and_a_second_tab_see_the_same_turn(
    open_page: OpenPage, session: Session, hf: Holdfast
) -> None:
    page = await open_page(session)
    await send(page, f"run: echo tick; {UNTIL_LET_GO}; echo tock\nsay over")
    await expect(page.locator("section.tool.running")).to_contain_text("tick")
    await page.reload()
    second = await open_page(session)
    for each in (page, second):
        await expect(each.locator("section.tool.running")).to_contain_text("tick")
        await expect(each.locator(".strip")).to_contain_text("Working")
    await let_go(hf, session)
    for each in (page, second):
        await expect(each.locator("section.tool")).to_contain_text("tock")
        await expect(each.locator("article.assistant").last).to_contain_text("over")
        await expect(receipts(each)).to_have_count(1)
        await expect(each.locator("article.user")).to_have_count(1)


async def test_a_running_turn_is_queued_behind_steered_and_stopped(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "wait 60 seconds")
    await expect(composer(page).get_by_role("button", name="Stop")).to_be_visible()
    await send(page, "say from the queue")
    queue = page.get_by_role("list", name="Queued turns")
    await expect(queue).to_contain_text("say from the queue")
    await queue.get_by_role("button", name="Take out of the queue").click()
    await expect(queue).to_have_count(0)
    await composer(page).get_by_label("Prompt").fill("wait 50 seconds")
    await composer(page).get_by_role("button", name="Steer").click()
    await expect(page.get_by_text("The turn was stopped")).to_have_count(1)
    await expect(page.locator("article.user")).to_have_count(2)
    await expect(page.locator(".strip")).to_contain_text("Working")
    await page.keyboard.press("Control+.")
    await expect(page.get_by_text("The turn was stopped")).to_have_count(2)
    await expect(composer(page).get_by_role("button", name="Send")).to_be_visible()


async def test_killed_and_gone_on_with_by_another_harness(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "write kept to kept.txt\nremember the word is samphire")
    await expect(receipts(page)).to_have_count(1)
    panel = page.get_by_role("region", name="Sandbox")
    await panel.get_by_role("button", name="Kill it and watch").click()
    await expect(page.locator(".strip")).to_contain_text("no sandbox")
    await expect(panel).to_contain_text("No sandbox is running")
    await send(page, "read kept.txt back")
    await expect(page.locator(".line").last).to_contain_text("resumed natively")
    await expect(receipts(page)).to_have_count(2)
    await choose(page, "Harness", "opencode")
    await send(page, "recall")
    await expect(page.locator("article.user").last).to_contain_text("opencode on local")
    await expect(page.locator(".line").last).to_contain_text("handed over with a briefing")
    await expect(page.locator("article.assistant").last).to_contain_text("samphire")
    await expect(receipts(page)).to_have_count(3)
    await expect(receipts(page).last).to_have_class("receipt good")


async def test_a_permission_is_answered_after_a_reload_and_from_another_tab(
    open_page: OpenPage, make_session: MakeSession
) -> None:
    session = await make_session(harness="claude", permissions="ask")
    page = await open_page(session)
    await send(page, "run: echo one > one.txt")
    asked = page.get_by_role("group", name="Permission asked")
    await expect(asked).to_contain_text("one.txt")
    await expect(page.locator(".strip")).to_contain_text("Waiting for you")
    await page.reload()
    second = await open_page(session)
    await expect(asked).to_be_visible()
    other = second.get_by_role("group", name="Permission asked")
    await other.locator("button.primary").click()
    for each in (page, second):
        await expect(each.locator(".permission-done")).to_contain_text("Allowed in a browser")
    await expect(asked).to_have_count(0)
    await expect(receipts(page)).to_contain_text("Safe in the store 1 file")
