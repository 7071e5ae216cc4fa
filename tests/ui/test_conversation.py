"""Turns in the page: made, watched, reloaded, followed, stopped, killed and gone on with."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from tests.ui.conftest import MakeSession, OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import UNTIL_LET_GO, choose, composer, let_go, messages, receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

# Longer than any test: the turn ends because it is stopped.
ENDLESS = "wait 600 seconds"
HARNESSES = ("claude", "codex", "opencode", "pi")


async def test_a_session_is_made_in_the_form_and_named_by_its_first_prompt(
    open_page: OpenPage,
) -> None:
    page = await open_page()
    await expect(find(page, Hook.WELCOME)).to_be_visible()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New session")
    await dialog.get_by_role("radio", name=re.compile("^pi")).check()
    await expect(dialog.get_by_label("Permissions")).to_have_value("auto")
    await expect(dialog.get_by_label("Permissions").locator("option[value=ask]")).to_be_disabled()
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(re.compile(r"#/s/[0-9a-f-]{36}$"))
    await send(page, "say first words of a tale")
    await expect(find(page, Hook.SESSION_TITLE)).to_contain_text("first words of a tale")
    await expect(page.get_by_role("link", name=re.compile("first words"))).to_be_visible()
    await expect(receipts(page)).to_have_attribute("data-tone", "good")


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_turn_with_each_harness_is_watched_to_its_receipt(
    open_page: OpenPage, make_session: MakeSession, harness: str
) -> None:
    session = await make_session(harness=harness)
    page = await open_page(session)
    await send(page, f"write made by {harness} to made.txt\nrun: sha256sum made.txt")
    await expect(find(page, Hook.SAFETY, tone="warn")).to_contain_text("Not yet safe")
    await expect(receipts(page)).to_contain_text("Safe in the store 1 file")
    await expect(find(page, Hook.SAFETY, tone="good")).to_contain_text("Safe")
    steps = find(page, Hook.ROW).filter(has=find(page, Hook.STEP)).first
    await expect(find(steps, Hook.STEP, type="sandbox.ready", provider="local")).to_be_visible()
    await expect(find(steps, Hook.STEP, type="mount.ready")).to_be_visible()
    await expect(find(page, Hook.TOOL).last).to_contain_text(re.compile("[0-9a-f]{64}"))
    await expect(find(page, Hook.FILE_ROWS).get_by_text("made.txt")).to_be_visible()
    await receipts(page).get_by_role("button").first.click()
    await expect(receipts(page)).to_contain_text("1 file changed in this turn")


async def test_a_reload_in_the_middle_and_a_second_tab_see_the_same_turn(
    open_page: OpenPage, session: Session, hf: Holdfast
) -> None:
    page = await open_page(session)
    await send(page, f"run: echo tick; {UNTIL_LET_GO}; echo tock\nsay over")
    await expect(find(page, Hook.TOOL, state="running")).to_contain_text("tick")
    await page.reload()
    second = await open_page(session)
    for each in (page, second):
        await expect(find(each, Hook.TOOL, state="running")).to_contain_text("tick")
        await expect(find(each, Hook.LIVENESS, state="working")).to_contain_text("Working")
    await let_go(hf, session)
    for each in (page, second):
        await expect(find(each, Hook.TOOL)).to_contain_text("tock")
        await expect(messages(each, "assistant").last).to_contain_text("over")
        await expect(receipts(each)).to_have_count(1)
        await expect(messages(each, "user")).to_have_count(1)


async def test_a_running_turn_is_queued_behind_steered_and_stopped(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, ENDLESS)
    await expect(composer(page).get_by_role("button", name="Stop")).to_be_visible()
    await send(page, "say from the queue")
    queue = find(page, Hook.QUEUE)
    await expect(queue).to_contain_text("say from the queue")
    await queue.get_by_role("button").click()
    await expect(queue).to_have_count(0)
    await composer(page).get_by_label("Prompt").fill(ENDLESS)
    await composer(page).get_by_role("button", name="Steer").click()
    await expect(find(page, Hook.TURN_END, state="cancelled")).to_have_count(1)
    await expect(find(page, Hook.TURN_END)).to_contain_text("The turn was stopped")
    await expect(messages(page, "user")).to_have_count(2)
    await expect(find(page, Hook.LIVENESS, state="working")).to_be_visible()
    await page.keyboard.press("Control+.")
    await expect(find(page, Hook.TURN_END, state="cancelled")).to_have_count(2)
    await expect(composer(page).get_by_role("button", name="Send")).to_be_visible()


async def test_killed_and_gone_on_with_by_another_harness(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "write kept to kept.txt\nremember the word is samphire")
    await expect(receipts(page)).to_have_count(1)
    await find(page, Hook.KILL).click()
    await expect(find(page, Hook.PLACE, provider="")).to_contain_text("no sandbox")
    await expect(find(page, Hook.SANDBOX, state="none")).to_contain_text("No sandbox is running")
    await send(page, "read kept.txt back")
    await expect(find(page, Hook.STEP, type="resume").last).to_have_attribute("data-rung", "native")
    await expect(receipts(page)).to_have_count(2)
    await choose(page, "Harness", "opencode")
    await send(page, "recall")
    agent = find(messages(page, "user").last, Hook.MESSAGE_AGENT)
    await expect(agent).to_have_attribute("data-harness", "opencode")
    await expect(agent).to_have_attribute("data-provider", "local")
    resumed = find(page, Hook.STEP, type="resume").last
    await expect(resumed).to_have_attribute("data-rung", "handoff")
    await expect(messages(page, "assistant").last).to_contain_text("samphire")
    await expect(receipts(page)).to_have_count(3)
    await expect(receipts(page).last).to_have_attribute("data-tone", "good")


async def test_a_permission_is_answered_after_a_reload_and_from_another_tab(
    open_page: OpenPage, make_session: MakeSession
) -> None:
    session = await make_session(harness="codex", permissions="ask")
    page = await open_page(session)
    await send(page, "ask to run: echo one > one.txt")
    asked = find(page, Hook.PERMISSION)
    await expect(asked).to_contain_text("one.txt")
    await expect(find(page, Hook.LIVENESS, state="waiting")).to_contain_text("Waiting for you")
    await page.reload()
    second = await open_page(session)
    await expect(asked).to_be_visible()
    await find(second, Hook.PERMISSION_OPTION, kind="allow_once").click()
    for each in (page, second):
        answer = find(each, Hook.PERMISSION_ANSWER, allowed="true", by="page")
        await expect(answer).to_contain_text("Allowed in a browser")
    await expect(asked).to_have_count(0)
    await expect(receipts(page)).to_have_attribute("data-files", "1")
