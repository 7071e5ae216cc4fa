"""A real Chromium on the real embedded stack; what the browser complains of fails the test."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    TimeoutError,
    async_playwright,
)

from client import Holdfast
from contracts.bodies import Session
from contracts.errors import HoldfastError
from tests.support.chromium import find_chromium
from tests.support.light_agent.tree import LIGHT, light_agent
from tests.support.requirements import missing
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory
from tests.ui.hooks import Hook, find
from tests.ui.steps import SECONDS

# Without these, Chromium as root does not start, and looks for hosts of its maker.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Chromium drops every connection when an interface of the machine comes or goes, as those of
# other tests' containers and namespaces do.
NOT_OURS = "ERR_NETWORK_CHANGED"


async def drawn(page: Page) -> None:
    """Wait for the first screen; a load that was dropped with the connections is made again."""
    for _ in range(5):
        try:
            await find(page, Hook.APP).wait_for(timeout=SECONDS * 1000 / 6)
        except TimeoutError:
            await page.reload()
        else:
            return
    raise AssertionError("the page was loaded five times and never drawn")


class OpenPage(Protocol):
    async def __call__(
        self, session: Session | None = None, *, width: int = 1440, expects: str = ""
    ) -> Page:
        """A page that is logged in, in a browser profile of its own.

        `expects` is a pattern of the complaints that the test means to cause.
        """


@pytest.fixture(scope="session")
def chromium() -> str:
    found = find_chromium()
    if found is None:
        missing("chromium", "no chromium on PATH; `make test-ui` installs Debian's as root")
    return found


@pytest.fixture(scope="package")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield made
        await made.close()


# Who takes the turns of tests that need some agent and not a particular one.
AGENT = LIGHT


@pytest.fixture(scope="package")
async def stack(fuse: None, chromium: str) -> AsyncIterator[RunningStack]:
    """One for all tests of this folder: their files share the xdist group `ui`."""
    with short_directory() as directory, light_agent() as harnesses:
        settings = {"HOLDFAST_RUN_DIR": str(directory / "run"), **harnesses}
        async with running_stack(directory / "data", settings) as running:
            yield running


@pytest.fixture
async def hf(stack: RunningStack) -> AsyncIterator[Holdfast]:
    async with Holdfast(stack.url, stack.token) as client:
        yield client


class MakeSession(Protocol):
    async def __call__(self, **choices: Any) -> Session:
        """A session that is deleted after the test, when no page looks at it any more."""


@pytest.fixture
async def make_session(hf: Holdfast) -> AsyncIterator[MakeSession]:
    made: list[Session] = []

    async def make(**choices: Any) -> Session:
        made.append(await hf.sessions.create(**choices))
        return made[-1]

    yield make
    for session in made:
        with contextlib.suppress(HoldfastError):  # the test may have deleted it
            await hf.sessions.delete(session.id)


@pytest.fixture
async def session(make_session: MakeSession) -> Session:
    return await make_session(**AGENT)


@pytest.fixture
async def open_page(
    stack: RunningStack, browser: Browser, tmp_path: Path, make_session: MakeSession
) -> AsyncIterator[OpenPage]:
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    async def opened(
        session: Session | None = None, *, width: int = 1440, expects: str = ""
    ) -> Page:
        height = 900 if width > 500 else 800
        context = await browser.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        context.set_default_timeout(SECONDS * 1000)
        page = await context.new_page()

        def complain(text: str) -> None:
            if not re.search(f"{NOT_OURS}|{expects}" if expects else NOT_OURS, text):
                complaints.append(text)

        def of_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                complain(f"{message.type}: {message.text} {message.location.get('url')}")

        page.on("console", of_console)
        page.on("pageerror", lambda error: complain(f"exception: {error.stack or error}"))
        page.on("dialog", lambda dialog: complain(f"dialog: {dialog.message}"))
        await page.goto(f"{stack.url}/?token={stack.token}")
        if session is not None:
            await page.goto(f"{stack.url}/#/s/{session.id}")
        await drawn(page)
        return page

    yield opened
    for number, context in enumerate(contexts):
        for page in context.pages:
            await page.screenshot(path=tmp_path / f"end-{number}.png")
        await context.close()
    assert complaints == []
