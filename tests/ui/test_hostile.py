"""What an agent prints can be anything; it is shown, and does nothing."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from client import Holdfast
from contracts.bodies import Session
from contracts.events import (
    EventBase,
    Message,
    PermissionAsked,
    Plan,
    Receipt,
    Thought,
    ToolCall,
    ToolResult,
    TurnCompleted,
    TurnStarted,
)
from tests.support.running_stack import RunningStack
from tests.ui.conftest import OpenPage
from tests.ui.hooks import Hook, find
from tests.ui.steps import messages, put_events, receipts, send

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(300)]

SCRIPT = "<script>window.hacked = 1; alert(1)</script>"
IMAGE = "<img src=x onerror='window.hacked = 2'>"
LINK = "[click](javascript:window.hacked=3) ![i](http://127.0.0.1:9/i.png)"
STYLE = "<style>body{display:none}</style><iframe src='//127.0.0.1:9'></iframe>"
RTL = "safe \u202egnp.exe\u202c \u05e9\u05dc\u05d5\u05dd"
BROKEN = "half \ud83d of a character, NUL \x00, bell \x07"
BOMB = "".join(f"\x1b[3{i % 8}m\x1b[{i}mX" for i in range(30_000)) + "\x1b]0;never ends"
LONG = "x" * 5_000_000
EVERYTHING = "\n\n".join((SCRIPT, IMAGE, LINK, STYLE, RTL, BROKEN))


def _hostile() -> list[EventBase]:
    options = [{"option_id": "o", "name": IMAGE, "kind": "allow_once"}]
    proof = {"engine": SCRIPT, "files": 1, "bytes": 1, "manifest_sha256": IMAGE, "took": 0.1}
    return [
        TurnStarted(harness=IMAGE, provider=SCRIPT),
        Message(role="user", text=EVERYTHING),
        Thought(text=EVERYTHING),
        Message(role="assistant", text=EVERYTHING),
        Plan(entries=[{"content": SCRIPT, "status": IMAGE}, None, 7]),
        PermissionAsked(permission_id="p", title=SCRIPT, options=options),
        ToolCall(tool_call_id=IMAGE, title=SCRIPT, kind=IMAGE, input={"command": IMAGE}),
        ToolResult(tool_call_id=IMAGE, status="failed", output=BOMB, paths=[SCRIPT, "../x"]),
        ToolCall(tool_call_id="2", title="t", input=[[["deep", {"constructor": IMAGE}]]]),
        ToolResult(
            tool_call_id="2",
            status="completed",
            output=LONG,
            diffs=[{"path": SCRIPT, "oldText": None, "newText": IMAGE}, None, "text"],
        ),
        Message(role="assistant", text=LONG),
        Message(role="assistant", text=">" * 3000 + "*" * 3000 + "\n\nthe end of it"),
        Receipt(**proof),
        TurnCompleted(),
    ]


async def test_hostile_output_is_shown_as_text(
    open_page: OpenPage, stack: RunningStack, session: Session, hf: Holdfast
) -> None:
    await hf.sessions.rename(session.id, SCRIPT + IMAGE)
    await put_events(stack, session, _hostile())
    page = await open_page(session)
    await expect(receipts(page)).to_be_visible()
    transcript = find(page, Hook.TRANSCRIPT)
    await transcript.evaluate("el => { el.scrollTop = 0 }")
    answer = messages(page, "assistant").first
    await expect(answer).to_contain_text(SCRIPT)
    await expect(answer).to_contain_text(IMAGE)
    await expect(answer).to_contain_text("⟨U+202E⟩gnp.exe")
    await expect(answer).to_contain_text("NUL ␀, bell ␇")
    assert await page.locator("a[href^=javascript], article img, article iframe").count() == 0
    await find(page, Hook.THOUGHT).get_by_role("button").click()
    tools = find(page, Hook.TOOL)
    await expect(tools.first).to_contain_text(SCRIPT)
    await expect(find(tools.first, Hook.TOOL_OUTPUT)).to_contain_text("XXXX")
    await find(tools.first, Hook.TOOL_INPUT).click()
    await expect(tools.first.locator("pre").first).to_contain_text(IMAGE)
    assert await page.evaluate("window.hacked") is None
    await expect(find(page, Hook.SESSION_TITLE)).to_have_text(SCRIPT + IMAGE)


async def test_a_line_of_five_megabytes_is_folded_and_unfolds_by_steps(
    open_page: OpenPage, stack: RunningStack, session: Session
) -> None:
    call = ToolCall(tool_call_id="1", title="cat")
    result = ToolResult(tool_call_id="1", status="completed", output=LONG)
    await put_events(stack, session, [TurnStarted(harness="pi", provider="local"), call, result])
    page = await open_page(session)
    output = find(page, Hook.TOOL_OUTPUT)
    await expect(output).to_contain_text("5.0 MB more")
    assert len(await output.locator("pre").inner_text()) < 10_000
    await output.get_by_role("button", name="Show output").click()
    await expect(output.get_by_role("button", name="Show more")).to_be_visible()
    assert len(await output.locator("pre").inner_text()) < 100_000
    await output.get_by_role("button", name="Fold").click()
    await expect(output.get_by_role("button", name="Show output")).to_be_visible()


async def test_a_real_command_that_prints_markup_and_colours_is_shown_as_text(
    open_page: OpenPage, session: Session
) -> None:
    page = await open_page(session)
    await send(page, rf"run: printf '{SCRIPT}\n\033[31mred\033[0m \377\376 broken\n'")
    await expect(receipts(page)).to_be_visible()
    output = find(page, Hook.TOOL_OUTPUT)
    await expect(output).to_contain_text(SCRIPT)
    plain = await output.locator("pre").evaluate("el => getComputedStyle(el).color")
    await expect(output.get_by_text("red", exact=True)).not_to_have_css("color", plain)
    assert await page.evaluate("window.hacked") is None
