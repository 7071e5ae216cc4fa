"""The Modal provider, by the SDK on the emulator. What every provider must do is in
tests/integration/conformance; here is what is Modal's own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import modal
import pytest
from modal import exception

from contracts.errors import (
    InvalidSpec,
    RateLimited,
    SandboxGone,
    Unauthorized,
    Unreachable,
)
from emulators.__main__ import running
from emulators.options import Options, Ready
from sidecar.providers.base import Command, Sandbox, SandboxSpec, Status
from sidecar.providers.cloud import TOKEN_FILE, Cloud
from sidecar.providers.modal import ERRORS, PATIENCE, ModalAccount, ModalProvider, opened
from sidecar.providers.modal_image import build_image, needed
from tests.support.paths import ROOT
from tests.support.services import free_port

NAP = ("sleep", "600")
# every call that `attach` makes of the control plane
HURRIED = dataclasses.replace(PATIENCE, call=2)  # for calls that are to fail
ATTACHING = ("SandboxWaitV2", "SandboxTagsGetV2", "SandboxCreateConnectTokenV2")


@pytest.fixture(scope="module")
async def emulator(sandbox_image: str) -> AsyncIterator[Ready]:
    async with running("modal", Options(image=sandbox_image)) as ready:
        yield ready


@pytest.fixture
async def control(emulator: Ready) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=30) as http:
        yield http


@pytest.fixture
def account(emulator: Ready) -> ModalAccount:
    return ModalAccount(
        token_id=emulator.more["token_id"],
        token_secret=emulator.more["token_secret"],
        app="holdfast",
        image="holdfast-sandbox",
        server_url=emulator.url,
    )


@pytest.fixture
def stack() -> Cloud:
    return cloud()


@pytest.fixture
async def provider(
    control: httpx.AsyncClient, account: ModalAccount, stack: Cloud
) -> AsyncIterator[ModalProvider]:
    async with provided(control, account, stack) as made:
        yield made


def cloud() -> Cloud:
    """Of a stack of its own."""
    return Cloud(
        stack=secrets.token_hex(4),
        gateway_url="",
        secret=secrets.token_bytes(32),
        gateway_secret=b"",
        lifetime=300,
    )


@contextlib.asynccontextmanager
async def provided(
    control: httpx.AsyncClient, account: ModalAccount, stack: Cloud | None = None
) -> AsyncIterator[ModalProvider]:
    """A provider of a stack of its own, whose boxes are ended with it."""
    async with ModalProvider.open(stack or cloud(), account) as made:
        yield made
        (await control.delete("/_emulator/faults")).raise_for_status()
        for sandbox_id in await boxes(made):
            await made.destroy(sandbox_id)


@pytest.fixture
def spec() -> SandboxSpec:
    session = str(uuid4())
    labels = {"session": session, "epoch": "1"}
    return SandboxSpec(f"{session}-1", session, labels, Path("/nowhere"))


async def boxes(provider: ModalProvider) -> list[str]:
    """What lives of the provider's stack."""
    return [info.sandbox_id async for info in provider.list({})]


async def napping(sandbox: Sandbox) -> bool:
    """Whether what was spawned runs; a process is there for a moment before it is the program."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            while [process.argv[:2] for process in await sandbox.processes()] != [NAP]:
                await asyncio.sleep(0.05)
            return True
    return False


async def inject(control: httpx.AsyncClient, fault: str, rpc: str = "", **more: Any) -> None:
    match = {"rpc": rpc} if rpc else {"path": "/call"}
    answer = await control.post("/_emulator/faults", json={"fault": fault, "match": match, **more})
    answer.raise_for_status()


async def clear(control: httpx.AsyncClient) -> None:
    (await control.delete("/_emulator/faults")).raise_for_status()


async def as_root(account: ModalAccount, sandbox_id: str, script: str) -> str:
    """What a script prints in the box, started by the SDK."""
    async with opened(account) as client:
        found = await modal.Sandbox.from_id.aio(sandbox_id, client=client)
        process = await found.exec.aio("sh", "-c", script)
        printed: str = await process.stdout.read.aio()
        await process.wait.aio()
        await found.detach.aio()  # type: ignore[no-untyped-call]
    return printed


# ---- errors --------------------------------------------------------------------------------------


def test_every_error_of_the_sdk_is_in_the_table() -> None:
    public = {
        each
        for name, each in vars(exception).items()
        if isinstance(each, type)
        and issubclass(each, BaseException)
        and not issubclass(each, Warning)
        and not name.startswith("_")
    }
    assert public - {vendor for vendor, _ in ERRORS} == set()


def test_no_row_of_the_table_is_hidden_by_one_before_it() -> None:
    vendors = [vendor for vendor, _ in ERRORS]
    hidden = [
        (later.__name__, earlier.__name__)
        for place, later in enumerate(vendors)
        for earlier in vendors[:place]
        if issubclass(later, earlier)
    ]
    assert hidden == []


def test_only_what_the_control_plane_says_of_a_sandbox_is_gone() -> None:
    gone = {vendor for vendor, ours in ERRORS if ours is SandboxGone}
    assert gone == {exception.SandboxTerminatedError, exception.SandboxTimeoutError}


def test_an_account_does_not_show_its_token(account: ModalAccount) -> None:
    assert "emulated" not in repr(account)


# ---- trouble -------------------------------------------------------------------------------------


async def test_without_a_token_nothing_is_asked_of_modal(account: ModalAccount) -> None:
    asked = 0

    def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        bare = dataclasses.replace(account, token_secret="", server_url=url)
        async with ModalProvider.open(cloud(), bare) as provider:
            assert "MODAL_TOKEN_ID" in await provider.trouble()
    assert asked == 0


async def test_trouble_tells_a_wrong_token_from_a_modal_that_is_away(
    control: httpx.AsyncClient, account: ModalAccount
) -> None:
    async with provided(control, account) as provider:
        assert await provider.trouble() == ""
    hurried = dataclasses.replace(PATIENCE, call=0.5)
    async with ModalProvider.open(cloud(), account, hurried) as provider:
        await inject(control, "hang", "ClientHello", times=None)
        assert await provider.trouble() == "Modal does not answer: Modal does not answer in 0.5 s"
    await clear(control)
    wrong = dataclasses.replace(account, token_secret="as-wrong")
    async with ModalProvider.open(cloud(), wrong) as provider:
        assert await provider.trouble() == "Modal refuses the token"
        assert await provider.status("sb-any") is Status.UNKNOWN


async def test_where_nobody_listens_every_call_is_bounded(
    account: ModalAccount, spec: SandboxSpec
) -> None:
    """The SDK itself tries for a minute."""
    hurried = dataclasses.replace(PATIENCE, call=1, create=1)
    away = dataclasses.replace(account, server_url=f"http://127.0.0.1:{free_port()}")
    async with ModalProvider.open(cloud(), away, hurried) as provider, asyncio.timeout(50):
        assert "does not answer" in await provider.trouble()
        assert await provider.status("sb-any") is Status.UNKNOWN
        with pytest.raises(Unreachable):
            await provider.create(spec)


async def test_a_closed_provider_is_unreachable(
    account: ModalAccount,
) -> None:
    async with ModalProvider.open(cloud(), account) as closed:
        assert await closed.trouble() == ""
    with pytest.raises(Unreachable):
        await closed.attach("sb-any")


# ---- create --------------------------------------------------------------------------------------


async def test_create_is_idempotent_by_key_also_twice_at_once(
    provider: ModalProvider, spec: SandboxSpec
) -> None:
    one, two = await asyncio.gather(provider.create(spec), provider.create(spec))
    again = await provider.create(spec)
    assert one.id == two.id == again.id
    assert await boxes(provider) == [one.id]
    assert (await again.exec(Command(["id", "-un"], cwd="/"))).stdout == b"agent\n"


@pytest.mark.parametrize("times", [1, 4])  # the SDK itself tries four times
async def test_a_create_whose_answer_gets_lost_leaves_one_box(
    control: httpx.AsyncClient, provider: ModalProvider, spec: SandboxSpec, times: int
) -> None:
    await inject(control, "lose", "SandboxCreateV2", times=times)
    created = await provider.create(spec)
    assert await boxes(provider) == [created.id]
    assert (await provider.create(spec)).id == created.id


async def test_a_create_that_modal_does_not_take_is_unreachable_and_can_be_repeated(
    control: httpx.AsyncClient, provider: ModalProvider, spec: SandboxSpec
) -> None:
    await inject(control, "reset", "SandboxCreateV2", times=None)
    with pytest.raises(Unreachable):
        await provider.create(spec)
    await clear(control)
    created = await provider.create(spec)
    assert await boxes(provider) == [created.id]


async def test_a_create_that_fails_after_the_box_was_made_finds_it_the_next_time(
    control: httpx.AsyncClient, provider: ModalProvider, spec: SandboxSpec
) -> None:
    await inject(control, "503", "SandboxCreateConnectTokenV2", times=None)
    with pytest.raises(Unreachable):
        await provider.create(spec)
    await clear(control)
    before = await boxes(provider)
    assert len(before) == 1
    assert [(await provider.create(spec)).id] == before


async def test_a_full_account_and_an_unknown_image_are_told_apart(
    control: httpx.AsyncClient, account: ModalAccount, spec: SandboxSpec
) -> None:
    async with provided(control, account) as provider:
        await inject(control, "429", "SandboxCreateV2")
        with pytest.raises(RateLimited):
            await provider.create(spec)
        await inject(control, "401", "SandboxCreateV2")
        with pytest.raises(Unauthorized):
            await provider.create(spec)
    unknown = dataclasses.replace(account, image="im-0000000000000000000000")
    async with provided(control, unknown) as provider:
        with pytest.raises(InvalidSpec):
            await provider.create(spec)


async def test_the_token_of_boxd_is_on_no_command_line_and_in_no_file(
    account: ModalAccount, stack: Cloud, provider: ModalProvider, spec: SandboxSpec
) -> None:
    sandbox = await provider.create(spec)
    shown = await as_root(account, sandbox.id, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ")
    assert "/opt/holdfast/boxd" in shown
    assert stack.token(spec.key) not in shown
    assert await as_root(account, sandbox.id, f"ls {TOKEN_FILE} || echo none") == "none\n"


async def test_the_token_of_boxd_goes_through_no_link_that_was_planted(
    account: ModalAccount, provider: ModalProvider, spec: SandboxSpec
) -> None:
    sandbox = await provider.create(spec)
    await as_root(account, sandbox.id, f"ln -s /home/agent/stolen {TOKEN_FILE}; {END_BOXD}")
    await provider.attach(sandbox.id)
    assert await as_root(account, sandbox.id, "cat /home/agent/stolen || echo none") == "none\n"


# ---- attach and status ---------------------------------------------------------------------------

END_BOXD = "pkill -KILL -f [h]oldfast/boxd"
COUNT_BOXDS = "pgrep -c -f [h]oldfast/boxd"


async def test_attach_finds_the_same_box_with_what_runs_in_it(
    provider: ModalProvider, spec: SandboxSpec
) -> None:
    created = await provider.create(spec)
    await created.spawn(Command(NAP, cwd="/"))
    attached = await provider.attach(created.id)
    assert (attached.id, attached.labels) == (created.id, spec.labels)
    assert await napping(attached)


async def test_a_sandbox_of_another_stack_is_not_attached_to(
    control: httpx.AsyncClient, account: ModalAccount, provider: ModalProvider, spec: SandboxSpec
) -> None:
    async with provided(control, account) as other:
        theirs = await other.create(spec)
        with pytest.raises(Unreachable, match="stack"):
            await provider.attach(theirs.id)


async def test_attach_starts_a_boxd_that_has_died(
    account: ModalAccount, provider: ModalProvider, spec: SandboxSpec
) -> None:
    created = await provider.create(spec)
    await as_root(account, created.id, END_BOXD)
    with pytest.raises(Unreachable):
        await created.exec(Command(["true"], cwd="/"))
    attached = await provider.attach(created.id)
    assert (await attached.exec(Command(["true"], cwd="/"))).exit_code == 0


@pytest.mark.parametrize("rpc", ATTACHING)
@pytest.mark.parametrize("fault", ["503", "reset", "hang"])
async def test_a_fault_in_attach_is_unreachable_and_makes_no_second_box(
    control: httpx.AsyncClient,
    account: ModalAccount,
    stack: Cloud,
    provider: ModalProvider,
    spec: SandboxSpec,
    rpc: str,
    fault: str,
) -> None:
    created = await provider.create(spec)
    await created.spawn(Command(NAP, cwd="/"))
    await inject(control, fault, rpc, times=None)
    async with ModalProvider.open(stack, account, HURRIED) as hurried:
        with pytest.raises(Unreachable):
            await hurried.attach(created.id)
    await clear(control)
    assert await boxes(provider) == [created.id]
    attached = await provider.attach(created.id)
    assert await napping(attached)


@pytest.mark.parametrize("fault", ["503", "reset", "401"])
async def test_a_port_that_fails_for_a_moment_in_attach_ends_nothing_in_the_box(
    control: httpx.AsyncClient,
    account: ModalAccount,
    provider: ModalProvider,
    spec: SandboxSpec,
    fault: str,
) -> None:
    created = await provider.create(spec)
    await created.spawn(Command(NAP, cwd="/"))
    await inject(control, fault)
    attached = await provider.attach(created.id)
    async with asyncio.timeout(20):  # one that was started in vain has to go
        while await as_root(account, created.id, COUNT_BOXDS) != "1\n":
            await asyncio.sleep(0.1)
    assert await napping(attached)


@pytest.mark.parametrize("fault", ["401", "429", "503", "reset", "hang"])
async def test_no_fault_is_taken_for_the_end_of_a_box(
    control: httpx.AsyncClient,
    account: ModalAccount,
    stack: Cloud,
    provider: ModalProvider,
    spec: SandboxSpec,
    fault: str,
) -> None:
    created = await provider.create(spec)
    await inject(control, fault, "SandboxWaitV2", times=None)
    async with ModalProvider.open(stack, account, HURRIED) as hurried:
        assert await hurried.status(created.id) is Status.UNKNOWN
    await clear(control)
    assert await provider.status(created.id) is Status.RUNNING


@pytest.mark.parametrize("lever", ["expire", "delete"])
async def test_a_box_that_ended_is_gone_by_the_word_of_the_control_plane(
    control: httpx.AsyncClient, provider: ModalProvider, spec: SandboxSpec, lever: str
) -> None:
    created = await provider.create(spec)
    assert await provider.status(created.id) is Status.RUNNING
    (await control.post(f"/_emulator/{lever}/{created.id}")).raise_for_status()
    with pytest.raises(Unreachable):  # what its port says is no proof
        await created.exec(Command(["true"], cwd="/"))
    assert await provider.status(created.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(created.id)
    assert await provider.destroy(created.id) is False
    assert await boxes(provider) == []


async def test_a_box_lives_no_longer_than_the_account_says(
    control: httpx.AsyncClient, account: ModalAccount, spec: SandboxSpec
) -> None:
    async with provided(control, dataclasses.replace(account, lifetime=5)) as provider:
        assert provider.capabilities.max_lifetime == 5
        created = await provider.create(spec)
        async with asyncio.timeout(15):
            while await provider.status(created.id) is not Status.GONE:
                await created.keepalive()  # prolongs nothing
                await asyncio.sleep(0.1)


# ---- list and destroy ----------------------------------------------------------------------------


async def test_list_shows_this_stack_alone(
    control: httpx.AsyncClient, account: ModalAccount, provider: ModalProvider, spec: SandboxSpec
) -> None:
    mine = await provider.create(spec)
    async with provided(control, account) as other:
        theirs = await other.create(spec)  # the same key, in another stack
        assert theirs.id != mine.id
        assert await boxes(other) == [theirs.id]
        (info,) = [info async for info in provider.list({"session": spec.session_id})]
    assert (info.sandbox_id, info.labels, info.status) == (mine.id, spec.labels, Status.RUNNING)
    assert info.created_at.startswith("20")
    assert [each async for each in provider.list({"session": str(uuid4())})] == []


async def test_destroy_twice(provider: ModalProvider, spec: SandboxSpec) -> None:
    created = await provider.create(spec)
    assert await provider.destroy(created.id) is True
    assert await provider.destroy(created.id) is False
    assert await provider.status(created.id) is Status.GONE
    assert (await provider.create(spec)).id != created.id  # its name is free again


async def test_a_destroy_that_modal_does_not_answer_is_no_proof(
    control: httpx.AsyncClient, provider: ModalProvider, spec: SandboxSpec
) -> None:
    created = await provider.create(spec)
    await inject(control, "503", "SandboxTerminateV2", times=None)
    with pytest.raises(Unreachable):
        await provider.destroy(created.id)
    assert await provider.status(created.id) is Status.RUNNING


# ---- the image -----------------------------------------------------------------------------------


def test_only_the_stages_of_the_sandbox_are_built() -> None:
    found = needed((ROOT / "sandbox-image" / "Dockerfile").read_text())
    stages = [line for line in found.splitlines() if line.startswith("FROM ")]
    assert [stage.rpartition(" ")[2] for stage in stages] == [
        *("packages", "harness", "sandbox", "sandbox")
    ]
    assert stages[-1] == "FROM sandbox"


async def test_the_image_is_built_once_and_sandboxes_are_made_of_it(
    control: httpx.AsyncClient, account: ModalAccount, spec: SandboxSpec, tmp_path: Path
) -> None:
    for part in ("sandbox-image", "harnesses"):
        shutil.copytree(ROOT / part, tmp_path / part)
    said: list[str] = []
    built = await build_image(account, tmp_path, say=said.append)
    assert "'holdfast'" in said[0]
    builds = (await control.get("/_modal/builds")).json()
    assert built in builds
    assert await build_image(account, tmp_path) == built
    assert (await control.get("/_modal/builds")).json() == builds
    async with provided(control, dataclasses.replace(account, image=built)) as provider:
        assert await provider.status((await provider.create(spec)).id) is Status.RUNNING
    (tmp_path / "sidecar").mkdir()
    (tmp_path / "sidecar" / "app.py").touch()  # only the box-host's image has it
    assert await build_image(account, tmp_path) == built
    with (tmp_path / "sandbox-image" / "boxd" / "ports.py").open("a") as changed:
        changed.write("# changed\n")
    assert await build_image(account, tmp_path) != built
