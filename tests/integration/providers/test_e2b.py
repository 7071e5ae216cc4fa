"""The E2B provider, on the real SDK, on the emulator of E2B."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import e2b
import e2b.exceptions
import httpx
import pytest
from e2b.api.client import errors as api_errors
from e2b.volume.client import errors as volume_errors
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contracts.errors import (
    InvalidSpec,
    NoCapacity,
    RateLimited,
    SandboxError,
    SandboxGone,
    Unauthorized,
    Unreachable,
)
from emulators.__main__ import running
from emulators.http_server import http_server
from emulators.options import Options, Ready
from sidecar.providers.base import Command, SandboxSpec, Status
from sidecar.providers.cloud import BOXD_PORT, TOKEN_FILE, Cloud, CloudSandbox
from sidecar.providers.e2b import CREATE_ERRORS, ERRORS, PATIENCE, E2BAccount, E2BProvider

CREATES = "^/v2/sandboxes$"
WITHIN = 60
# For calls that are to fail.
HURRIED = replace(PATIENCE, call=1, boxd_answer=0.5, boxd_start=0.5)
Create = Callable[..., Awaitable[CloudSandbox]]


@pytest.fixture(scope="module")
async def emulator(sandbox_image: str) -> AsyncIterator[Ready]:
    async with running("e2b", Options(image=sandbox_image)) as ready:
        yield ready


@pytest.fixture
async def control(emulator: Ready) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=120) as http:
        yield http
        await http.delete("/_emulator/faults")


@pytest.fixture
def account(emulator: Ready) -> E2BAccount:
    return E2BAccount(
        api_key=emulator.more["api_key"],
        template="holdfast-sandbox",
        api_url=emulator.url,
        sandbox_url=emulator.url,
    )


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(
        stack=f"test-{secrets.token_hex(4)}",
        gateway_url="http://127.0.0.1:1",
        secret=b"a secret of the stack",
        gateway_secret=b"another one",
        lifetime=600,
    )


@pytest.fixture
async def provider(cloud: Cloud, account: E2BAccount) -> AsyncIterator[E2BProvider]:
    async with E2BProvider.open(cloud, account) as opened:
        yield opened
        async for left in opened.list({}):
            await opened.destroy(left.sandbox_id)


def spec(session: str = "one", epoch: int = 1) -> SandboxSpec:
    return SandboxSpec(
        key=f"{session}-{epoch}",
        session_id=session,
        labels={"session": session, "epoch": str(epoch)},
        gateway_socket=Path("/nowhere"),
    )


async def ids(provider: E2BProvider) -> list[str]:
    return [found.sandbox_id async for found in provider.list({})]


async def inject(control: httpx.AsyncClient, fault: str, path: str, **more: Any) -> None:
    match = {"path": path, **({"method": more.pop("method")} if "method" in more else {})}
    answer = await control.post("/_emulator/faults", json={"fault": fault, "match": match, **more})
    answer.raise_for_status()


async def hits(control: httpx.AsyncClient) -> int:
    return sum(fault["hits"] for fault in (await control.get("/_emulator/faults")).json())


async def pull(control: httpx.AsyncClient, lever: str, sandbox_id: str) -> None:
    (await control.post(f"/_emulator/{lever}/{sandbox_id}")).raise_for_status()


async def said(sandbox: CloudSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-c", script], cwd="/"))
    assert result.exit_code == 0, result
    return result.stdout.decode()


# ---- errors --------------------------------------------------------------------------------------


def sdk_errors() -> set[type[BaseException]]:
    modules = (e2b, e2b.exceptions, api_errors, volume_errors)
    named = (value for module in modules for value in vars(module).values())
    return {each for each in named if inspect.isclass(each) and issubclass(each, BaseException)}


def test_every_error_of_the_sdk_is_mapped() -> None:
    assert sdk_errors() - {vendor for vendor, _ in ERRORS} == set()


@pytest.mark.parametrize("table", [ERRORS, CREATE_ERRORS])
def test_no_row_is_hidden_by_one_before_it(
    table: list[tuple[type[BaseException], type[SandboxError]]],
) -> None:
    hidden = [
        (later.__name__, earlier.__name__)
        for number, (later, _) in enumerate(table)
        for earlier, _ in table[:number]
        if issubclass(later, earlier) and later is not earlier
    ]
    assert hidden == []


def test_only_the_control_plane_says_gone() -> None:
    assert SandboxGone not in {ours for _, ours in (*ERRORS, *CREATE_ERRORS)}


def test_the_account_does_not_show_its_key() -> None:
    assert "sesame" not in repr(E2BAccount(api_key="sesame", template="any"))


# ---- trouble -------------------------------------------------------------------------------------


async def test_there_is_no_trouble_with_a_key_and_a_template(provider: E2BProvider) -> None:
    assert await provider.trouble() == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"api_key": "e2b_another"}, "refuses the key"),
        ({"template": "nobodys"}, "no template nobodys"),
        ({"api_url": "http://127.0.0.1:1"}, "does not answer"),
    ],
)
async def test_trouble_says_what_is_wrong(
    cloud: Cloud, account: E2BAccount, changed: dict[str, str], words: str
) -> None:
    async with E2BProvider.open(cloud, replace(account, **changed)) as troubled:
        assert words in await troubled.trouble()


async def test_without_a_key_nobody_is_asked(cloud: Cloud) -> None:
    asked = asyncio.Event()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with E2BProvider.open(cloud, E2BAccount("", "any", url, url)) as keyless:
            assert "E2B_API_KEY" in await keyless.trouble()
    assert not asked.is_set()


# ---- create --------------------------------------------------------------------------------------


async def test_a_created_sandbox_works_as_the_agents_user(provider: E2BProvider) -> None:
    sandbox = await provider.create(spec())
    assert await said(sandbox, "id -un; pwd") == "agent\n/\n"
    assert sandbox.labels == {"session": "one", "epoch": "1"}
    assert await provider.status(sandbox.id) is Status.RUNNING


async def test_boxds_token_is_left_nowhere(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    box = await e2b.AsyncSandbox.connect(sandbox.id, **account.params(0))
    (boxd,) = await box.commands.list()
    assert cloud.token(spec().key) not in f"{boxd.cmd} {boxd.args} {boxd.envs}"
    seen = await said(sandbox, f"ls {TOKEN_FILE} 2>&1; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "No such file" in seen
    assert cloud.token(spec().key) not in seen


async def test_creating_twice_is_one_box(provider: E2BProvider) -> None:
    first = await provider.create(spec())
    again = await provider.create(spec())
    assert again.id == first.id
    assert await ids(provider) == [first.id]


async def test_creating_two_at_once_is_one_box(provider: E2BProvider) -> None:
    made = await asyncio.gather(*(provider.create(spec()) for _ in range(3)))
    assert len({sandbox.id for sandbox in made}) == 1
    assert await ids(provider) == [made[0].id]


async def test_two_sidecars_that_create_at_once_get_one_box(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    async with E2BProvider.open(cloud, account) as other:
        made = await asyncio.gather(provider.create(spec()), other.create(spec()))
    assert made[0].id == made[1].id
    assert await ids(provider) == [made[0].id]


@pytest.mark.parametrize("fault", ["lose", "reset"])
async def test_a_create_that_is_broken_off_is_one_box(
    provider: E2BProvider, control: httpx.AsyncClient, fault: str
) -> None:
    await inject(control, fault, CREATES, method="POST", times=2)
    sandbox = await provider.create(spec())
    assert await hits(control) == (2 if fault == "reset" else 1)  # what was lost is found
    assert await ids(provider) == [sandbox.id]


async def test_a_create_whose_answer_was_lost_for_good_is_found_by_the_next_sidecar(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount, control: httpx.AsyncClient
) -> None:
    await inject(control, "lose", CREATES, method="POST", times=None)
    async with E2BProvider.open(cloud, account, replace(PATIENCE, create=0)) as hurried:
        with pytest.raises(Unreachable):
            await hurried.create(spec())
    await control.delete("/_emulator/faults")
    (made,) = await ids(provider)
    async with E2BProvider.open(cloud, account) as other:
        assert (await other.create(spec())).id == made
    assert await ids(provider) == [made]


async def test_a_box_that_shows_up_late_is_not_doubled(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount, control: httpx.AsyncClient
) -> None:
    """The request is given up while E2B is still at it, and is asked for again."""
    await inject(control, "delay", CREATES, method="POST", seconds=2)
    async with E2BProvider.open(cloud, account, replace(PATIENCE, call=1)) as hurried:
        sandbox = await hurried.create(spec())
    assert await hits(control) == 1
    assert await ids(provider) == [sandbox.id]


@pytest.mark.parametrize("at_once", [True, False])
async def test_where_idempotency_keys_are_not_heeded_one_box_is_kept(
    provider: E2BProvider,
    cloud: Cloud,
    account: E2BAccount,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    """Both have looked, and seen none. The second makes its box at the same time, or only when the
    first has got its own, seen it alone, and kept it."""
    create = e2b.AsyncSandbox.create
    both, kept = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    async def unheeding(*args: Any, idempotency_key: str, **given: Any) -> e2b.AsyncSandbox:
        asked.append(idempotency_key)
        if len(asked) == 2:
            both.set()
        async with asyncio.timeout(WITHIN):
            await (kept if len(asked) == 2 and not at_once else both).wait()
        return await create(*args, **given)

    async def made_by(creator: E2BProvider) -> str:
        made = await creator.create(spec())
        kept.set()
        return made.id

    monkeypatch.setattr(e2b.AsyncSandbox, "create", unheeding)
    async with E2BProvider.open(cloud, account) as other:
        first, second = await asyncio.gather(made_by(provider), made_by(other))
    assert first == second
    assert await ids(provider) == [first]


async def test_a_key_whose_box_has_ended_gets_another_box(provider: E2BProvider) -> None:
    first = await provider.create(spec())
    await provider.destroy(first.id)
    second = await provider.create(spec())
    assert second.id != first.id
    assert await ids(provider) == [second.id]


@pytest.mark.parametrize(
    ("fault", "error"), [("429", RateLimited), ("503", NoCapacity), ("401", Unauthorized)]
)
async def test_a_create_that_is_refused_says_why_and_can_be_tried_again(
    provider: E2BProvider, control: httpx.AsyncClient, fault: str, error: type[SandboxError]
) -> None:
    await inject(control, fault, CREATES, method="POST")
    with pytest.raises(error):
        await provider.create(spec())
    assert await ids(provider) == []
    await provider.create(spec())


async def test_a_refusal_that_e2b_remembers_does_not_stay_for_ever(
    cloud: Cloud, account: E2BAccount, provider: E2BProvider
) -> None:
    """E2B answers an idempotency key with the refusal that it gave first."""
    async with E2BProvider.open(cloud, replace(account, template="nobodys")) as wrong:
        with pytest.raises(InvalidSpec):
            await wrong.create(spec())
        wrong._account = account  # the template is there now
        sandbox = await wrong.create(spec())
    assert await ids(provider) == [sandbox.id]


async def test_a_suspended_box_of_the_key_is_woken_and_not_doubled(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    first = await provider.create(spec())
    await pull(control, "expire", first.id)
    assert await provider.status(first.id) is Status.SUSPENDED
    again = await provider.create(spec())
    assert again.id == first.id
    assert await provider.status(first.id) is Status.RUNNING


# ---- attach --------------------------------------------------------------------------------------


async def test_attaching_finds_the_same_processes(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    first = await provider.create(spec())
    await first.spawn(Command(["sleep", "600"], cwd="/"))
    async with E2BProvider.open(cloud, account) as other:
        again = await other.attach(first.id)
        assert any(process.argv[0] == "sleep" for process in await again.processes())
    assert again.labels == first.labels


async def test_a_lease_that_ended_suspends_and_attaching_goes_on_where_it_was(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    first = await provider.create(spec())
    await first.spawn(Command(["sleep", "600"], cwd="/"))
    await pull(control, "expire", first.id)
    assert await provider.status(first.id) is Status.SUSPENDED
    again = await provider.attach(first.id)
    assert again.id == first.id
    assert any(process.argv[0] == "sleep" for process in await again.processes())


async def test_what_is_asked_of_a_suspended_box_wakes_it(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    sandbox = await provider.create(spec())
    await pull(control, "expire", sandbox.id)
    assert await said(sandbox, "echo awake") == "awake\n"
    assert await provider.status(sandbox.id) is Status.RUNNING


async def test_attaching_starts_boxd_again_when_it_has_ended(
    provider: E2BProvider, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    box = await e2b.AsyncSandbox.connect(sandbox.id, **account.params(0))
    (boxd,) = await box.commands.list()
    assert await box.commands.kill(boxd.pid)
    with pytest.raises(Unreachable):
        await said(sandbox, "true")
    again = await provider.attach(sandbox.id)
    assert await said(again, "echo back") == "back\n"
    assert again.id == sandbox.id


async def test_a_box_that_was_rebooted_is_attached_to(
    provider: E2BProvider, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    await sandbox.write("/home/agent/kept", b"kept")
    await e2b.AsyncSandbox.pause(sandbox.id, mode="filesystem", **account.params(0))
    again = await provider.attach(sandbox.id)
    assert await again.read("/home/agent/kept") == b"kept"


async def test_a_box_whose_memory_cannot_be_restored_is_booted_from_its_disk(
    cloud: Cloud, account: E2BAccount
) -> None:
    """E2B refuses to resume it otherwise. The emulator never suspends a box in such a state."""
    asked: list[bool | None] = []

    async def connect(request: Request) -> Response:
        asked.append((await request.json()).get("memory"))
        if asked[-1] is not False:
            code = e2b.GuestUnresponsiveException.code
            return JSONResponse({"code": 409, "message": "no", "error_code": code}, 409)
        return JSONResponse({"code": 404, "message": "it is gone since"}, 404)

    app = Starlette(routes=[Route("/v2/sandboxes/any/connect", connect, methods=["POST"])])
    async with (
        http_server(app, "127.0.0.1") as url,
        E2BProvider.open(cloud, replace(account, api_url=url)) as provider,
    ):
        with pytest.raises(SandboxGone):
            await provider.attach("any")
    assert asked == [None, False]


@pytest.mark.parametrize("fault", ["429", "503", "reset", "hang"])
@pytest.mark.parametrize("path", ["/connect$", "^/sandboxes/", "^/call$"])
async def test_a_fault_while_attaching_makes_no_second_box(
    provider: E2BProvider,
    cloud: Cloud,
    account: E2BAccount,
    control: httpx.AsyncClient,
    fault: str,
    path: str,
) -> None:
    sandbox = await provider.create(spec())
    await inject(control, fault, path, times=None)
    async with E2BProvider.open(cloud, account, HURRIED) as hurried, asyncio.timeout(WITHIN):
        with pytest.raises(Unreachable):
            await hurried.attach(sandbox.id)
    assert await hits(control) > 0
    await control.delete("/_emulator/faults")
    assert (await provider.attach(sandbox.id)).id == sandbox.id
    assert await ids(provider) == [sandbox.id]


async def test_a_way_in_that_fails_does_not_end_what_runs_in_the_box(
    provider: E2BProvider, account: E2BAccount, control: httpx.AsyncClient
) -> None:
    """boxd is taken for dead and started a second time, beside the living one."""
    sandbox = await provider.create(spec())
    await sandbox.spawn(Command(["sleep", "600"], cwd="/"))
    (before,) = [each for each in await sandbox.processes() if each.argv[0] == "sleep"]
    await inject(control, "503", "^/call$", times=2)
    again = await provider.attach(sandbox.id)
    assert await hits(control) == 2
    box = await e2b.AsyncSandbox.connect(sandbox.id, **account.params(0))
    async with asyncio.timeout(WITHIN):
        while len(await box.commands.list()) > 1:  # until the second one has ended
            await asyncio.sleep(0.05)
    assert before in await again.processes()


async def test_a_box_that_is_gone_is_gone(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    sandbox = await provider.create(spec())
    await pull(control, "delete", sandbox.id)
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.keepalive()
    with pytest.raises(Unreachable):
        await said(sandbox, "true")


async def test_a_box_of_another_stack_is_not_attached_to(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    async with E2BProvider.open(replace(cloud, stack="another"), account) as stranger:
        with pytest.raises(Unreachable, match="not one of this stack"):
            await stranger.attach(sandbox.id)


# ---- status, list, destroy, keepalive ------------------------------------------------------------


@pytest.mark.parametrize("fault", ["401", "429", "503", "reset", "hang"])
async def test_an_unclear_answer_is_not_gone(
    provider: E2BProvider,
    cloud: Cloud,
    account: E2BAccount,
    control: httpx.AsyncClient,
    fault: str,
) -> None:
    await inject(control, fault, "^/sandboxes/", times=None)
    async with E2BProvider.open(cloud, account, HURRIED) as hurried, asyncio.timeout(WITHIN):
        assert await hurried.status("any") is Status.UNKNOWN
    await control.delete("/_emulator/faults")
    assert await provider.status("any") is Status.GONE


async def test_an_answer_that_is_not_e2bs_is_not_gone(cloud: Cloud, account: E2BAccount) -> None:
    """A proxy in between answers in its own words."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b"<html>the gateway is out for lunch</html>"
        head = f"HTTP/1.1 500 Oh\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with E2BProvider.open(cloud, replace(account, api_url=url)) as behind:
            assert await behind.status("any") is Status.UNKNOWN
            with pytest.raises(Unreachable):
                await behind.destroy("any")


async def test_a_list_shows_the_boxes_of_this_stack_by_their_labels(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    ours = await provider.create(spec("one"))
    other = await provider.create(spec("two"))
    async with E2BProvider.open(replace(cloud, stack=f"{cloud.stack}-2"), account) as rival:
        theirs = await rival.create(spec("one"))
        assert await ids(rival) == [theirs.id]
        await rival.destroy(theirs.id)
    assert set(await ids(provider)) == {ours.id, other.id}
    (found,) = [each async for each in provider.list({"session": "one"})]
    assert (found.sandbox_id, found.status) == (ours.id, Status.RUNNING)
    assert found.labels == {"session": "one", "epoch": "1"}


async def test_a_list_shows_no_other_stacks_boxes_whatever_e2b_sends(
    provider: E2BProvider,
    cloud: Cloud,
    account: E2BAccount,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strays are destroyed by what is listed."""
    labels = replace(cloud, stack="another").labels(spec())
    theirs = await e2b.AsyncSandbox.create(account.template, metadata=labels, **account.params(0))
    monkeypatch.setattr("emulators.e2b.control._filters", lambda given: {})
    assert await ids(provider) == []
    await theirs.kill()


async def test_a_list_is_whole_beyond_a_page(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emulators.e2b.control.MOST_LISTED", 2)
    made = set()
    for session in ("one", "two", "three"):
        labels = cloud.labels(spec(session))
        box = await e2b.AsyncSandbox.create(account.template, metadata=labels, **account.params(0))
        made.add(box.sandbox_id)
    assert set(await ids(provider)) == made


async def test_destroying_twice_says_what_lived(provider: E2BProvider) -> None:
    sandbox = await provider.create(spec())
    assert await provider.destroy(sandbox.id) is True
    assert await provider.destroy(sandbox.id) is False
    assert await provider.status(sandbox.id) is Status.GONE


async def test_a_suspended_box_is_destroyed(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    sandbox = await provider.create(spec())
    await pull(control, "expire", sandbox.id)
    assert await provider.destroy(sandbox.id) is True
    assert await provider.status(sandbox.id) is Status.GONE


async def test_keepalive_extends_the_lease(
    provider: E2BProvider, cloud: Cloud, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    params = account.params(0)
    await e2b.AsyncSandbox.set_timeout(sandbox.id, 60, **params)
    before = (await e2b.AsyncSandbox.get_info(sandbox.id, **params)).end_at
    await sandbox.keepalive()
    after = (await e2b.AsyncSandbox.get_info(sandbox.id, **params)).end_at
    assert (after - before).total_seconds() == pytest.approx(cloud.lifetime - 60, abs=10)


async def test_keepalive_of_a_suspended_box_does_not_call_it_gone(
    provider: E2BProvider, control: httpx.AsyncClient
) -> None:
    sandbox = await provider.create(spec())
    await pull(control, "expire", sandbox.id)
    with pytest.raises(Unreachable):
        await sandbox.keepalive()
    assert await provider.status(sandbox.id) is Status.SUSPENDED


# ---- the way in ----------------------------------------------------------------------------------


async def test_nobody_reaches_boxd_without_both_tokens(
    provider: E2BProvider, emulator: Ready, account: E2BAccount
) -> None:
    sandbox = await provider.create(spec())
    box = await e2b.AsyncSandbox.connect(sandbox.id, **account.params(0))
    named = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": str(BOXD_PORT)}
    asked = json.dumps({"op": "processes"}).encode() + b"\n"
    async with httpx.AsyncClient(base_url=emulator.url) as http:
        assert (await http.post("/call", content=asked, headers=named)).status_code == 403
        assert box.traffic_access_token
        let_in = {**named, "e2b-traffic-access-token": box.traffic_access_token}
        refused = await http.post("/call", content=asked, headers=let_in)
        assert refused.status_code in (401, 403)
        with contextlib.suppress(ValueError):
            assert "processes" not in refused.json()


async def test_nothing_that_everybody_may_write_to_is_run_as_root(
    provider: E2BProvider, account: E2BAccount
) -> None:
    """E2B opens /usr/local in every template: what the agent puts there must not start boxd."""
    sandbox = await provider.create(spec())
    box = await e2b.AsyncSandbox.connect(sandbox.id, **account.params(0))
    trap = "#!/bin/bash\n/usr/bin/id -u >>/tmp/trapped\nexit 1\n"
    for name in ("python3", "sh", "cat", "rm", "timeout"):
        await box.files.write(f"/usr/local/bin/{name}", trap, user="root")
        await box.commands.run(f"chmod 755 /usr/local/bin/{name}", user="root")
    (boxd,) = await box.commands.list()
    assert await box.commands.kill(boxd.pid)
    again = await provider.attach(sandbox.id)
    assert await said(again, "cat /tmp/trapped 2>/dev/null || true") == ""
