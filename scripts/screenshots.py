"""Take docs/screenshots anew: a stack of its own, real turns, Debian's Chromium."""

from __future__ import annotations

import asyncio
import sys

from playwright.async_api import Browser, Page, async_playwright, expect

from client import Holdfast
from contracts.bodies import Session
from tests.support.chromium import find_chromium
from tests.support.paths import ROOT
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory
from tests.ui.conftest import ARGUMENTS
from tests.ui.hooks import Hook, find
from tests.ui.steps import choose, receipts, send

OUT = ROOT / "docs" / "screenshots"
MATRIX_WITHIN = 900_000
expect.set_options(timeout=180_000)

TIDES = "\n".join(
    (
        "think The stations are few, so a table will do. First the data, then the check.",
        r'write "station,low,high\nSele,05:41,11:53\nNorthby,05:12,11:20\n" to tides/stations.csv',
        r"run: cd tides && printf '\033[32m%s ok\033[0m\n' $(tail -n +2 *.csv) && sha256sum *",
        r'say "The **tide table** is written and checked:\n\n- `Sele`: low 05:41, high 11:53'
        r"\n- `Northby`: low 05:12, high 11:20\n\n```python\nnext_tide(\"Sele\")  # 11:53\n```"
        '"',
        "remember the harbour is called Sele",
    )
)


async def page_for(
    browser: Browser, stack: RunningStack, at: str, *, width: int = 1440, dark: bool = False
) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": 900 if width > 500 else 820},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    page = await context.new_page()
    await page.goto(f"{stack.url}/?token={stack.token}")
    await page.goto(f"{stack.url}/{at}")
    await expect(find(page, Hook.APP)).to_be_visible()
    return page


async def shoot(page: Page, name: str) -> None:
    await page.mouse.move(0, 0)
    await page.wait_for_timeout(700)  # toasts and dots come to rest
    await page.screenshot(path=OUT / f"{name}.png")
    sys.stdout.write(f"{name}.png\n")


async def conversation(browser: Browser, stack: RunningStack, session: Session) -> None:
    """A session that was killed and goes on, in the light, in the dark, and on a phone."""
    page = await page_for(browser, stack, f"#/s/{session.id}")
    await send(page, TIDES)
    await expect(receipts(page)).to_have_count(1)
    await find(page, Hook.KILL).click()
    await expect(find(page, Hook.PLACE, provider="")).to_be_visible()
    await send(page, "run: cd tides && sha256sum *\nrecall")
    await expect(receipts(page)).to_have_count(2)
    await choose(page, "Harness", "codex")
    await send(page, "read tides/stations.csv")
    await expect(receipts(page)).to_have_count(3)
    for toast in await find(page, Hook.TOASTS).get_by_role("button").all():
        await toast.click()
    await find(page, Hook.FILE_ROWS).get_by_role("button", name="tides").click()
    top = find(page, Hook.TRANSCRIPT)
    await top.evaluate("el => { el.scrollTop = 0 }")
    await shoot(page, "conversation")
    await top.evaluate("el => { el.scrollTop = el.scrollHeight }")
    await receipts(page).last.get_by_role("button").first.click()
    await top.evaluate("el => { el.scrollTop = el.scrollHeight }")
    await shoot(page, "resumed")
    await find(page, Hook.FILE_ROWS).get_by_role("button", name="stations.csv").click()
    await expect(page.get_by_role("cell", name="Northby")).to_be_visible()
    await shoot(page, "preview")
    dark = await page_for(browser, stack, f"#/s/{session.id}", dark=True)
    await expect(receipts(dark).last).to_be_visible()
    await shoot(dark, "dark")
    narrow = await page_for(browser, stack, f"#/s/{session.id}", width=400)
    await expect(receipts(narrow).last).to_be_visible()
    await shoot(narrow, "narrow")


async def permission(browser: Browser, stack: RunningStack, session: Session) -> None:
    page = await page_for(browser, stack, f"#/s/{session.id}")
    await send(page, "run: git init -q . && git status --short")
    allow = find(page, Hook.PERMISSION_OPTION, kind="allow_once")
    await expect(allow).to_be_visible()
    await shoot(page, "permission")
    await allow.click()
    await expect(receipts(page)).to_be_visible()


async def demo(browser: Browser, stack: RunningStack) -> None:
    page = await page_for(browser, stack, "#/")
    await find(page, Hook.SHOW_ME).click()
    await expect(find(page, Hook.DEMO, state="over")).to_be_visible()
    await shoot(page, "show-me")


async def matrix(browser: Browser, stack: RunningStack) -> None:
    page = await page_for(browser, stack, "#/matrix")
    await find(page, Hook.RUN_MATRIX).click()
    cells = find(page, Hook.CELL)
    await expect(cells.first).to_be_visible()
    await expect(find(page, Hook.RUN_MATRIX)).to_be_visible(timeout=MATRIX_WITHIN)
    await cells.first.click()
    await shoot(page, "matrix")


async def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("no chromium on PATH")
    OUT.mkdir(parents=True, exist_ok=True)
    with short_directory() as directory:
        async with (
            running_stack(directory / "data") as stack,
            async_playwright() as playwright,
            Holdfast(stack.url, stack.token) as client,
        ):
            browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            asking = await client.sessions.create(
                harness="claude", permissions="ask", title="Put it under version control"
            )
            tides = await client.sessions.create(harness="pi", title="A tide table for Sele")
            await demo(browser, stack)
            await permission(browser, stack, asking)
            await conversation(browser, stack, tides)
            home = await page_for(browser, stack, "#/")
            await expect(home.get_by_role("link", name="A tide table")).to_be_visible()
            await shoot(home, "home")
            await matrix(browser, stack)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
