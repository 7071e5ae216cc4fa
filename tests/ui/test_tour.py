"""The demo, the matrix and the sandboxes, in the page."""

from __future__ import annotations

import re

from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from tests.ui.conftest import OpenPage
from tests.ui.steps import receipts, send


async def test_show_me_kills_a_sandbox_and_goes_on_elsewhere_with_proof(
    open_page: OpenPage, hf: Holdfast
) -> None:
    page = await open_page()
    await page.get_by_role("button", name="Show me").click()
    told = page.get_by_role("complementary", name="Demo")
    await expect(told).to_contain_text("That is all", timeout=150_000)
    assert await told.locator("li.bad").count() == 0
    for line in ("The receipt: 2 files", "SIGKILL", "The random bytes are the same", "Sele"):
        await expect(told).to_contain_text(line)
    await expect(receipts(page).last).to_have_class("receipt good")
    await expect(page.locator(".strip")).to_contain_text("Safe")
    await page.get_by_role("button", name="Close the demo").click()
    await expect(told).to_have_count(0)


async def test_the_matrix_runs_from_the_page_and_fills_its_cells(open_page: OpenPage) -> None:
    page = await open_page()
    await page.get_by_role("link", name="Matrix").first.click()
    await expect(page.get_by_text("No run yet")).to_be_visible()
    for name in ("claude", "codex", "opencode"):
        await page.get_by_role("checkbox", name=name).uncheck()
    docker = page.get_by_role("checkbox", name="docker")
    if await docker.count():
        await docker.uncheck()
    await page.get_by_role("button", name="Run the matrix").click()
    cell = page.locator(".cell")
    await expect(cell).to_have_count(1)
    await expect(cell).to_have_class("cell good", timeout=150_000)
    await cell.click()
    await expect(page.get_by_role("region", name="Cell")).to_contain_text("pi on local")
    assert await page.locator(".cell-steps li").count() > 2
    await page.reload()
    await expect(cell).to_have_class("cell good")
    await expect(page.locator(".runs li")).to_contain_text("1 passed")


async def test_a_sandbox_is_seen_with_its_memory_and_destroyed_in_order(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "say hello")
    await expect(receipts(page)).to_be_visible()
    panel = page.get_by_role("region", name="Sandbox")
    await expect(panel).to_contain_text(re.compile(r"Memory\d+ [MK]B"))
    await expect(panel).to_contain_text("Warm until")
    await panel.get_by_role("button", name="All sandboxes").click()
    every = page.get_by_role("dialog", name="Sandboxes")
    await expect(every).to_contain_text("No leaks")
    await expect(every.get_by_role("row", name=re.compile("hello"))).to_contain_text("local")
    await page.keyboard.press("Escape")
    await panel.get_by_role("button", name="Destroy").click()
    await expect(panel).to_contain_text("No sandbox is running")
