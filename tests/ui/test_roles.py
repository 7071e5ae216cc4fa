"""What a login that may only read sees: everything, and nothing to press that would be refused."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from client import Holdfast
from contracts.bodies import Session
from tests.support.running_stack import RunningStack
from tests.ui.conftest import OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import composer, receipts, send
from tests.ui.test_files import close_file, open_file

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

REASON = 'The token "viewer" may only read.'


@pytest.fixture
async def viewer(hf: Holdfast) -> AsyncIterator[str]:
    """Asked for before the page, so that it is revoked when nobody looks any more."""
    yield (await hf.tokens.create("viewer", "read")).token
    await hf.tokens.delete("viewer")


async def logged_in(page: Page, stack: RunningStack, token: str, session: Session) -> None:
    """The same browser, as somebody else."""
    await page.goto(f"{stack.url}/?token={token}")
    assert "token=" not in page.url
    await page.goto(f"{stack.url}/#/s/{session.id}")
    await page.reload()


async def test_a_reader_sees_a_session_and_can_change_nothing_of_it(
    stack: RunningStack, viewer: str, open_page: OpenPage, hf: Holdfast, session: Session
) -> None:
    await hf.files.put(session.id, "there.txt", b"there")
    page = await open_page(session)
    await expect(find(page, Hook.LOGIN, name="owner", role="admin")).to_be_visible()
    await expect(find(page, Hook.PROMPT)).to_be_enabled()

    await logged_in(page, stack, viewer, session)
    login = find(page, Hook.LOGIN, name="viewer", role="read")
    await expect(login).to_contain_text(REASON)
    prompt = find(page, Hook.PROMPT)
    await expect(prompt).to_be_disabled()
    await expect(prompt).to_have_attribute("title", f'{REASON} This needs one with the role "run".')
    await expect(composer(page).get_by_role("button", name="Send")).to_be_disabled()
    await expect(find(page, Hook.NEW_SESSION)).to_be_disabled()
    await open_file(page, "there.txt")
    await close_file(page)
    for name in ("Upload", "New folder", "Rename", "Delete"):
        button = page.get_by_role("toolbar").get_by_role("button", name=name, exact=True)
        await expect(button).to_be_disabled()
        await expect(button).to_have_attribute(
            "title", f'{REASON} This needs one with the role "run".'
        )
    await page.get_by_role("button", name="Session menu").click()
    for name in ("Rename", "Archive", "Delete…"):
        await expect(page.get_by_role("menuitem", name=name)).to_be_disabled()
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_reader_follows_what_others_do(
    stack: RunningStack, viewer: str, open_page: OpenPage, session: Session
) -> None:
    watching = await open_page(session)
    await logged_in(watching, stack, viewer, session)
    working = await open_page(session)
    await send(working, "say good morning")
    await expect(watching.get_by_text("good morning").first).to_be_visible()
    await expect(receipts(watching)).to_be_visible()
    await expect(find(watching, Hook.KILL)).to_be_disabled()
