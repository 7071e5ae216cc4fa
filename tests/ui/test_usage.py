"""What models were used and may be, in the page."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Budget
from tests.ui.conftest import AGENT, OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import messages, receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]


async def test_a_budget_is_given_in_the_form_runs_out_and_is_raised(
    open_page: OpenPage, hf: Holdfast
) -> None:
    page = await open_page()
    await page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New session")
    await dialog.get_by_role("radio", name=re.compile(f"^{AGENT['harness']}")).check()
    await dialog.get_by_label("Model").fill(AGENT["model"])
    await dialog.get_by_label("Budget in tokens").fill("1")
    await dialog.get_by_role("button", name="Create").click()
    await expect(page).to_have_url(re.compile(r"#/s/[0-9a-f-]{36}$"))
    session_id = page.url.rsplit("/", 1)[-1]
    assert (await hf.sessions.get(session_id)).budget == Budget(tokens=1)
    await send(page, "write a to a.txt")
    end = find(page, Hook.TURN_END)
    await expect(end).to_contain_text(re.compile("The session's budget is spent: [0-9,]+ of 1"))
    await expect(end).to_contain_text("in the page")
    await expect(receipts(page)).to_contain_text(re.compile(r"proven in .* tokens · \$0\.00"))
    models = find(page, Hook.USAGE)
    await expect(models).to_contain_text("of 1 token")
    await expect(models).to_have_attribute("data-tone", "bad")

    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Budget…").click()
    dialog = page.get_by_role("dialog", name="Budget")
    await expect(dialog).to_contain_text("Used so far")
    await dialog.get_by_label("Budget in tokens").fill("")
    await dialog.get_by_label("Budget in dollars").fill("2.5")
    await dialog.get_by_role("button", name="Save").click()
    await expect(models).to_contain_text("$0.00 of $2.50")
    assert (await hf.sessions.get(session_id)).budget == Budget(cost=2.5)
    await send(page, "say fine")
    await expect(messages(page, "assistant").last).to_contain_text("fine")
    await page.close()  # it would ask for what is gone
    await hf.sessions.delete(session_id)
