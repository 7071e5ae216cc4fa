"""The demo, the matrix and the sandboxes, in the page."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from tests.ui.conftest import OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]


async def test_show_me_kills_a_sandbox_and_goes_on_elsewhere_with_proof(
    open_page: OpenPage, hf: Holdfast
) -> None:
    page = await open_page()
    await find(page, Hook.SHOW_ME).click()
    told = find(page, Hook.DEMO)
    await expect(told).to_have_attribute("data-state", "over", timeout=150_000)
    await expect(told).to_contain_text("That is all")
    assert await find(told, Hook.DEMO_STEP, tone="bad").count() == 0
    for line in ("The receipt: 2 files", "SIGKILL", "The random bytes are the same", "Sele"):
        await expect(told).to_contain_text(line)
    await expect(receipts(page).last).to_have_attribute("data-tone", "good")
    await expect(find(page, Hook.SAFETY)).to_have_attribute("data-tone", "good")
    await page.get_by_role("button", name="Close the demo").click()
    await expect(told).to_have_count(0)


async def test_the_matrix_runs_from_the_page_and_fills_its_cells(open_page: OpenPage) -> None:
    page = await open_page()
    await page.get_by_role("link", name="Matrix").first.click()
    await expect(find(page, Hook.NO_RUNS)).to_be_visible()
    for name in ("claude", "codex", "opencode"):
        await page.get_by_role("checkbox", name=name).uncheck()
    docker = page.get_by_role("checkbox", name="docker")
    if await docker.count():
        await docker.uncheck()
    await find(page, Hook.RUN_MATRIX).click()
    cell = find(page, Hook.CELL)
    await expect(cell).to_have_count(1)
    await expect(cell).to_have_attribute("data-state", "passed", timeout=150_000)
    await cell.click()
    await expect(find(page, Hook.CELL_DETAILS, harness="pi", provider="local")).to_be_visible()
    assert await find(page, Hook.CELL_STEP).count() > 2
    await page.reload()
    await expect(cell).to_have_attribute("data-state", "passed")
    await expect(find(page, Hook.MATRIX_RUN)).to_have_attribute("data-passed", "1")
    await expect(find(page, Hook.MATRIX_RUN)).to_contain_text("1 passed")


async def test_a_sandbox_is_seen_with_its_memory_and_destroyed_in_order(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, "say hello")
    await expect(receipts(page)).to_be_visible()
    await expect(find(page, Hook.SANDBOX_MEMORY)).to_have_text(re.compile(r"^[\d.]+ [MK]B$"))
    await expect(find(page, Hook.SANDBOX_WARM_UNTIL)).to_be_visible()
    await find(page, Hook.ALL_SANDBOXES).click()
    every = page.get_by_role("dialog", name="Sandboxes")
    await expect(find(every, Hook.LEAKS)).to_have_attribute("data-count", "0")
    await expect(every.get_by_role("row", name=re.compile("hello"))).to_contain_text("local")
    await page.keyboard.press("Escape")
    await find(page, Hook.DESTROY).click()
    await expect(find(page, Hook.SANDBOX, state="none")).to_be_visible()
