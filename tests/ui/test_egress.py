"""What a session may reach, chosen and changed in the page, and told in its transcript."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from contracts.events import Egress, Resume, TurnStarted
from tests.support.running_stack import RunningStack
from tests.ui.conftest import OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import put_events

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]


async def test_a_session_is_made_with_what_it_may_reach(open_page: OpenPage, hf: Holdfast) -> None:
    page = await open_page(expects="status of 400")
    await find(page, Hook.NEW_SESSION).click()
    dialog = page.get_by_role("dialog", name="New session")
    await expect(dialog.get_by_label("And these hosts")).to_have_count(0)
    await dialog.get_by_label("Title").fill("reaches little")
    await dialog.get_by_label("Egress").select_option("allow")
    await dialog.get_by_label("And these hosts").fill("10.0.0.1")
    await dialog.get_by_role("button", name="Create").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("egress_hosts")
    await dialog.get_by_label("And these hosts").fill("A.example, *.b.example")
    await dialog.get_by_role("button", name="Create").click()
    await expect(find(page, Hook.PLACE)).to_have_attribute("data-egress", "allow")
    session = await hf.sessions.resolve("last")
    assert (session.title, session.egress) == ("reaches little", "allow")
    assert session.egress_hosts == ["a.example", "*.b.example"]

    await page.get_by_role("button", name="Session menu").click()
    await page.get_by_role("menuitem", name="Egress").click()
    change = page.get_by_role("dialog", name="What this session may reach")
    await expect(change.get_by_label("And these hosts")).to_have_value("a.example, *.b.example")
    await change.get_by_label("Egress").select_option("off")
    await change.get_by_role("button", name="Save").click()
    await expect(find(page, Hook.PLACE)).to_have_attribute("data-egress", "off")
    assert (await hf.sessions.get(session.id)).egress == "off"
    await page.close()  # it would ask for what is gone
    await hf.sessions.delete(session.id)


async def test_what_went_out_and_what_was_refused_are_thin_lines(
    open_page: OpenPage, stack: RunningStack, session: Session
) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    reached = Egress(
        host="pypi.org", port=443, method="CONNECT", verdict="allowed", bytes_up=10, bytes_down=20
    )
    refused = Egress(host=hostile, verdict="refused", reason="no name of a host", connections=3)
    started = TurnStarted(harness="pi", provider="local", egress="allow")
    await put_events(stack, session, [started, Resume(rung="new"), reached, refused])
    page = await open_page(session)
    await expect(find(page, Hook.STEP).filter(has_text="egress: pypi.org:443")).to_be_visible()
    await expect(
        find(page, Hook.STEP).filter(has_text=f"egress refused: {hostile}")
    ).to_be_visible()
