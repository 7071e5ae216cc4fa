"""The Daytona provider, on the SDK, on the emulator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from daytona import AsyncDaytona, Image
from daytona.common import errors as sdk

from contracts.errors import (
    InvalidSpec,
    QuotaExceeded,
    RateLimited,
    SandboxConflict,
    SandboxError,
    SandboxGone,
    Unauthorized,
    Unreachable,
)
from sidecar.providers import daytona as module
from sidecar.providers.base import Command, SandboxSpec, Status
from sidecar.providers.cloud import TOKEN_FILE, Cloud, CloudSandbox
from sidecar.providers.daytona import (
    CREATE_ERRORS,
    ERRORS,
    PATIENCE,
    DaytonaAccount,
    DaytonaProvider,
)
from sidecar.providers.daytona_image import build_image, stage
from tests.support.emulators.fixtures import Emulator, started
from tests.support.paths import ROOT
from tests.support.requirements import missing

LIFETIME = 600.0
HOME_FILE = "/home/agent/kept"
BOXD = "pkill -KILL -f /opt/holdfast/boxd"
HURRIED = replace(PATIENCE, call=1)  # for calls that are to fail


@pytest.fixture(scope="module")
async def emulator() -> AsyncIterator[Emulator]:
    if os.geteuid() != 0:
        missing("root", "boxes are made and entered by root only")
    image = os.environ.get("HOLDFAST_SANDBOX_IMAGE", "holdfast-sandbox:latest")
    backend = os.environ.get("HOLDFAST_EMULATOR_BACKEND", "auto")
    argv = ["-m", "emulators", "daytona", "--port", "0", "--image", image, "--backend", backend]
    async with started(argv) as running:
        yield running


@pytest.fixture
async def control(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=60) as http:
        yield http
        await http.delete("/_emulator/faults")


@pytest.fixture(scope="module")
def account(emulator: Emulator) -> DaytonaAccount:
    return DaytonaAccount(emulator.more["api_key"], emulator.more["snapshot"], emulator.url, "us")


@pytest.fixture(scope="module")
async def client(account: DaytonaAccount) -> AsyncIterator[AsyncDaytona]:
    """The account's owner, beside the provider."""
    async with module.opened(account) as found:
        yield found


@pytest.fixture
def cloud() -> Cloud:
    return new_cloud()


@pytest.fixture
async def provider(account: DaytonaAccount, cloud: Cloud) -> AsyncIterator[DaytonaProvider]:
    """Of a stack of its own, whose sandboxes end with the test."""
    async with opened(account, cloud) as found:
        yield found


@contextlib.asynccontextmanager
async def opened(
    account: DaytonaAccount, cloud: Cloud | None = None
) -> AsyncIterator[DaytonaProvider]:
    async with DaytonaProvider.open(cloud or new_cloud(), account) as provider:
        yield provider
        for sandbox_id in await listed(provider):
            await provider.destroy(sandbox_id)


def new_cloud() -> Cloud:
    return Cloud(
        stack=f"test-{secrets.token_hex(4)}",
        gateway_url="",
        secret=secrets.token_bytes(32),
        gateway_secret=secrets.token_bytes(32),
        lifetime=LIFETIME,
    )


@pytest.fixture
def spec() -> SandboxSpec:
    return make_spec()


def make_spec() -> SandboxSpec:
    session = secrets.token_hex(8)
    labels = {"session": session, "epoch": "1"}
    return SandboxSpec(f"{session}-1", session, labels, Path("/nowhere"))


@pytest.fixture
async def sandbox(provider: DaytonaProvider, spec: SandboxSpec) -> CloudSandbox:
    return await provider.create(spec)


async def listed(provider: DaytonaProvider, **labels: str) -> list[str]:
    return [info.sandbox_id async for info in provider.list(labels)]


async def inject(control: httpx.AsyncClient, fault: str, **given: Any) -> None:
    match = {name: given.pop(name) for name in ("method", "path", "sandbox") if name in given}
    body = {"fault": fault, "match": match, **given}
    (await control.post("/_emulator/faults", json=body)).raise_for_status()


async def clear(control: httpx.AsyncClient) -> None:
    (await control.delete("/_emulator/faults")).raise_for_status()


async def pull(control: httpx.AsyncClient, lever: str, sandbox: CloudSandbox) -> None:
    (await control.post(f"/_emulator/{lever}/{sandbox.id}")).raise_for_status()


async def pass_time(control: httpx.AsyncClient, minutes: float) -> None:
    (await control.post("/clock", json={"seconds": minutes * 60})).raise_for_status()


async def run(sandbox: CloudSandbox, *argv: str) -> tuple[int, bytes]:
    result = await sandbox.exec(Command(argv, cwd="/"))
    return result.exit_code, result.stdout


# ---- errors --------------------------------------------------------------------------------------


def vendor_classes() -> set[type[BaseException]]:
    return {
        value
        for value in vars(sdk).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    }


def test_every_error_class_of_the_sdk_is_in_the_table() -> None:
    assert len(vendor_classes()) > 30
    assert {vendor for vendor, _ in ERRORS} == vendor_classes()


def test_no_row_of_the_table_is_hidden_by_one_before_it() -> None:
    for vendor in vendor_classes():
        first = next(row for row in ERRORS if issubclass(vendor, row[0]))
        assert first[0] is vendor


def test_only_the_plain_not_found_says_gone() -> None:
    assert [vendor for vendor, ours in ERRORS if ours is SandboxGone] == [sdk.DaytonaNotFoundError]
    assert SandboxGone not in [
        next(ours for vendor, ours in CREATE_ERRORS if issubclass(each, vendor))
        for each in vendor_classes()
    ]


# ---- the account ---------------------------------------------------------------------------------


async def test_without_a_key_nothing_is_asked_of_anybody(account: DaytonaAccount) -> None:
    async with DaytonaProvider.open(new_cloud(), replace(account, api_key="")) as provider:
        assert "DAYTONA_API_KEY" in await provider.trouble()
        assert await provider.status("any") is Status.UNKNOWN
        with pytest.raises(Unauthorized):
            await provider.attach("any")


async def test_an_open_provider_asks_for_nothing_by_itself(account: DaytonaAccount) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        elsewhere = replace(account, api_url=f"http://127.0.0.1:{port}/api")
        async with DaytonaProvider.open(new_cloud(), elsewhere) as provider:
            assert "does not answer" in await provider.trouble()
    assert asked == [f"/api/snapshots/{account.snapshot}".encode()]


async def test_trouble_says_what_is_wrong_with_the_account(
    provider: DaytonaProvider, account: DaytonaAccount, control: httpx.AsyncClient
) -> None:
    assert await provider.trouble() == ""
    async with DaytonaProvider.open(new_cloud(), replace(account, api_key="dtn_other")) as wrong:
        assert await wrong.trouble() == "Daytona refuses the key"
    async with DaytonaProvider.open(new_cloud(), replace(account, snapshot="none-such")) as wrong:
        assert "no snapshot none-such" in await wrong.trouble()
    await inject(control, "503", path="/snapshots/")
    assert "does not answer" in await provider.trouble()


async def test_a_wrong_key_is_told_apart(account: DaytonaAccount, spec: SandboxSpec) -> None:
    async with DaytonaProvider.open(new_cloud(), replace(account, api_key="dtn_other")) as provider:
        with pytest.raises(Unauthorized):
            await provider.create(spec)
        assert await provider.status("any") is Status.UNKNOWN


def test_the_key_is_not_shown(account: DaytonaAccount) -> None:
    assert account.api_key not in repr(account)


# ---- create --------------------------------------------------------------------------------------


async def test_a_sandbox_has_boxd_and_no_token_lies_around(
    provider: DaytonaProvider, spec: SandboxSpec, sandbox: CloudSandbox, client: AsyncDaytona
) -> None:
    assert sandbox.labels == spec.labels
    assert await run(sandbox, "id", "-un") == (0, b"agent\n")
    assert (await run(sandbox, "test", "-e", TOKEN_FILE))[0] == 1
    box = await client.get(sandbox.id)
    assert (box.public, box.snapshot) == (False, "holdfast-sandbox")
    assert (box.auto_stop_interval, box.auto_delete_interval) == (10, 24 * 60)


async def test_two_creates_of_a_key_give_one_sandbox(
    provider: DaytonaProvider, spec: SandboxSpec
) -> None:
    one, two = await asyncio.gather(provider.create(spec), provider.create(spec))
    three = await provider.create(spec)
    assert one.id == two.id == three.id
    assert await listed(provider) == [one.id]
    assert await run(three, "true") == (0, b"")


@pytest.mark.parametrize("fault", ["lose", "reset", "503"])
async def test_a_create_that_is_cut_off_gives_one_sandbox(
    fault: str, provider: DaytonaProvider, spec: SandboxSpec, control: httpx.AsyncClient
) -> None:
    await inject(control, fault, method="POST", path="^/api/sandbox$")
    sandbox = await provider.create(spec)
    assert await listed(provider) == [sandbox.id]
    assert await run(sandbox, "true") == (0, b"")


async def test_a_create_that_stays_cut_off_is_found_by_the_next_one(
    provider: DaytonaProvider, spec: SandboxSpec, control: httpx.AsyncClient
) -> None:
    await inject(control, "lose", method="POST", path="^/api/sandbox$")
    await inject(control, "503", method="POST", path="^/api/sandbox$")
    with pytest.raises(Unreachable):
        await provider.create(spec)
    there = await listed(provider)
    assert len(there) == 1
    assert (await provider.create(spec)).id == there[0]
    assert await listed(provider) == there


async def test_create_finds_its_sandbox_stopped_and_starts_it(
    provider: DaytonaProvider,
    spec: SandboxSpec,
    sandbox: CloudSandbox,
    control: httpx.AsyncClient,
) -> None:
    await pull(control, "expire", sandbox)
    again = await provider.create(spec)
    assert again.id == sandbox.id
    assert await run(again, "true") == (0, b"")


async def test_a_deleted_sandbox_does_not_keep_its_key(
    provider: DaytonaProvider,
    spec: SandboxSpec,
    sandbox: CloudSandbox,
    control: httpx.AsyncClient,
) -> None:
    await pull(control, "delete", sandbox)
    again = await provider.create(spec)
    assert again.id != sandbox.id
    assert await listed(provider) == [again.id]


async def test_what_cannot_be_made_is_said(account: DaytonaAccount, spec: SandboxSpec) -> None:
    async with opened(replace(account, snapshot="none-such")) as provider:
        with pytest.raises(InvalidSpec, match="none-such"):
            await provider.create(spec)


async def test_a_limit_of_the_account_is_a_quota(
    provider: DaytonaProvider, spec: SandboxSpec, control: httpx.AsyncClient
) -> None:
    (await control.post("/quota", json={"cpu": 0})).raise_for_status()
    try:
        with pytest.raises(QuotaExceeded):
            await provider.create(spec)
    finally:
        (await control.post("/quota", json={"cpu": None})).raise_for_status()


# ---- attach --------------------------------------------------------------------------------------


async def test_attach_starts_a_stopped_sandbox_and_boxd_in_it(
    provider: DaytonaProvider, sandbox: CloudSandbox, control: httpx.AsyncClient
) -> None:
    await sandbox.write(HOME_FILE, b"kept")
    await pull(control, "expire", sandbox)
    assert await provider.status(sandbox.id) is Status.STOPPED
    with pytest.raises(Unreachable):
        await sandbox.exec(Command(["true"], cwd="/"))
    again = await provider.attach(sandbox.id)
    assert again.id == sandbox.id
    assert again.labels == sandbox.labels
    assert await again.read(HOME_FILE) == b"kept"
    assert await provider.status(sandbox.id) is Status.RUNNING


async def test_attach_gets_a_sandbox_out_of_the_archive(
    provider: DaytonaProvider,
    sandbox: CloudSandbox,
    client: AsyncDaytona,
    control: httpx.AsyncClient,
) -> None:
    await sandbox.write(HOME_FILE, b"kept")
    await pull(control, "expire", sandbox)
    await (await client.get(sandbox.id)).archive()
    assert await provider.status(sandbox.id) is Status.STOPPED
    assert await (await provider.attach(sandbox.id)).read(HOME_FILE) == b"kept"


async def test_attach_finds_what_runs(provider: DaytonaProvider, sandbox: CloudSandbox) -> None:
    await sandbox.spawn(Command(["sleep", "600"], cwd="/"))
    again = await provider.attach(sandbox.id)
    assert [process.argv[:2] for process in await again.processes()] == [("sleep", "600")]


async def test_attach_starts_a_boxd_that_has_died(
    provider: DaytonaProvider, sandbox: CloudSandbox, client: AsyncDaytona
) -> None:
    await sandbox.write(HOME_FILE, b"kept")
    box = await client.get(sandbox.id)
    await box.process.exec(BOXD)
    with pytest.raises(Unreachable):
        await sandbox.read(HOME_FILE)
    one, two = await asyncio.gather(provider.attach(sandbox.id), provider.attach(sandbox.id))
    assert await one.read(HOME_FILE) == await two.read(HOME_FILE) == b"kept"


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        ("503", Unreachable),
        ("reset", Unreachable),
        ("hang", Unreachable),
        ("429", RateLimited),
        ("401", Unauthorized),
    ],
)
async def test_a_passing_fault_in_attach_is_no_word_of_death_and_makes_no_second_sandbox(
    fault: str,
    raised: type[SandboxError],
    provider: DaytonaProvider,
    sandbox: CloudSandbox,
    account: DaytonaAccount,
    cloud: Cloud,
    control: httpx.AsyncClient,
) -> None:
    await inject(control, fault, sandbox=sandbox.id, path="^/api/", times=None)
    async with DaytonaProvider.open(cloud, account, HURRIED) as hurried:
        with pytest.raises(raised):
            await hurried.attach(sandbox.id)
        assert await hurried.status(sandbox.id) is Status.UNKNOWN
    await clear(control)
    assert (await provider.attach(sandbox.id)).id == sandbox.id
    assert await listed(provider) == [sandbox.id]


@pytest.mark.parametrize("fault", ["401", "503", "reset", "hang"])
async def test_whatever_the_toolbox_says_the_sandbox_is_unreachable_and_not_gone(
    fault: str,
    provider: DaytonaProvider,
    sandbox: CloudSandbox,
    client: AsyncDaytona,
    account: DaytonaAccount,
    cloud: Cloud,
    control: httpx.AsyncClient,
) -> None:
    await (await client.get(sandbox.id)).process.exec(BOXD)
    await inject(control, fault, path="^/toolbox/", times=None)
    async with DaytonaProvider.open(cloud, account, HURRIED) as hurried:
        with pytest.raises(Unreachable):
            await hurried.attach(sandbox.id)
    assert await provider.status(sandbox.id) is Status.RUNNING
    await clear(control)
    assert (await provider.attach(sandbox.id)).id == sandbox.id


async def test_the_token_is_never_in_a_file_that_others_can_read(
    provider: DaytonaProvider,
    sandbox: CloudSandbox,
    client: AsyncDaytona,
    control: httpx.AsyncClient,
) -> None:
    process = (await client.get(sandbox.id)).process
    await process.exec(f"{BOXD}; ln -s /tmp/planted {TOKEN_FILE}")
    await inject(control, "503", method="POST", path="/process/session$")
    with pytest.raises(Unreachable):
        await provider.attach(sandbox.id)  # between the upload and the start of boxd
    left = await process.exec(f"stat -c '%a %U %s' {TOKEN_FILE}; test -e /tmp/planted")
    assert (left.exit_code, left.result) == (1, "600 agent 64\n")
    await provider.attach(sandbox.id)
    assert (await process.exec(f"test -e {TOKEN_FILE}")).exit_code == 1


async def test_an_attach_while_others_stop_it_waits_and_starts_it(
    provider: DaytonaProvider, sandbox: CloudSandbox, client: AsyncDaytona
) -> None:
    box = await client.get(sandbox.id)
    stopping = asyncio.ensure_future(box.stop())
    async with asyncio.timeout(20):
        while await provider.status(sandbox.id) is Status.RUNNING:
            await asyncio.sleep(0)
    again = await provider.attach(sandbox.id)
    await stopping
    assert await run(again, "true") == (0, b"")


async def test_attach_repairs_a_broken_sandbox(
    provider: DaytonaProvider, sandbox: CloudSandbox, control: httpx.AsyncClient
) -> None:
    await sandbox.write(HOME_FILE, b"kept")
    await break_down(control, sandbox, recoverable=True)
    assert await provider.status(sandbox.id) is Status.STOPPED
    assert await (await provider.attach(sandbox.id)).read(HOME_FILE) == b"kept"


async def test_attach_ends_a_sandbox_that_is_broken_for_good_and_then_it_is_gone(
    provider: DaytonaProvider, sandbox: CloudSandbox, control: httpx.AsyncClient
) -> None:
    await break_down(control, sandbox, recoverable=False)
    assert await provider.status(sandbox.id) is Status.STOPPED
    with pytest.raises(SandboxGone, match="no space left"):
        await provider.attach(sandbox.id)
    assert await provider.status(sandbox.id) is Status.GONE
    assert await listed(provider) == []


async def break_down(
    control: httpx.AsyncClient, sandbox: CloudSandbox, *, recoverable: bool
) -> None:
    broken = await control.post(f"/break/{sandbox.id}", json={"recoverable": recoverable})
    broken.raise_for_status()


async def test_a_sandbox_of_another_stack_is_not_attached_to(
    provider: DaytonaProvider, account: DaytonaAccount, spec: SandboxSpec
) -> None:
    async with opened(account) as other:
        foreign = await other.create(spec)
        with pytest.raises(SandboxConflict):
            await provider.attach(foreign.id)


# ---- gone ----------------------------------------------------------------------------------------


async def test_a_deleted_sandbox_is_gone_by_the_control_planes_word_alone(
    provider: DaytonaProvider, sandbox: CloudSandbox, control: httpx.AsyncClient
) -> None:
    await pull(control, "delete", sandbox)
    with pytest.raises(Unreachable):  # its port leads to a login page, which is not followed
        await sandbox.exec(Command(["true"], cwd="/"))
    assert await provider.status(sandbox.id) is Status.GONE
    with pytest.raises(SandboxGone):
        await provider.attach(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.keepalive()


async def test_destroy_twice(provider: DaytonaProvider, sandbox: CloudSandbox) -> None:
    assert await provider.destroy(sandbox.id) is True
    assert await provider.status(sandbox.id) is Status.GONE
    assert await provider.destroy(sandbox.id) is False
    assert await listed(provider) == []


async def test_two_destroys_at_once_both_end_when_it_is_gone(
    provider: DaytonaProvider, sandbox: CloudSandbox
) -> None:
    await asyncio.gather(provider.destroy(sandbox.id), provider.destroy(sandbox.id))
    assert await provider.status(sandbox.id) is Status.GONE


async def test_a_sandbox_that_is_being_made_is_destroyed_as_soon_as_it_can_be(
    provider: DaytonaProvider, emulator: Emulator
) -> None:
    headers = {"Authorization": f"Bearer {emulator.more['api_key']}"}
    async with httpx.AsyncClient(base_url=emulator.url, headers=headers) as http:
        made = (await http.post("/sandbox", json={"snapshot": emulator.more["snapshot"]})).json()
    assert made["state"] == "creating"
    assert await provider.destroy(made["id"]) is True
    assert await provider.status(made["id"]) is Status.GONE


async def test_a_destroy_whose_answer_is_lost_is_still_a_destroy(
    provider: DaytonaProvider, sandbox: CloudSandbox, control: httpx.AsyncClient
) -> None:
    await inject(control, "lose", method="DELETE", sandbox=sandbox.id)
    assert await provider.destroy(sandbox.id) is True
    assert await provider.status(sandbox.id) is Status.GONE


# ---- list and leases -----------------------------------------------------------------------------


async def test_list_shows_this_stacks_sandboxes_and_no_others(
    provider: DaytonaProvider, account: DaytonaAccount
) -> None:
    async with opened(account) as other:
        mine, theirs = make_spec(), make_spec()
        box = await provider.create(mine)
        foreign = await other.create(theirs)
        assert await listed(provider) == [box.id]
        assert await listed(other) == [foreign.id]
        assert await listed(provider, session=mine.session_id) == [box.id]
        assert await listed(provider, session=theirs.session_id) == []
        (info,) = [info async for info in provider.list({})]
        assert (info.labels, info.status) == (mine.labels, Status.RUNNING)
        assert info.created_at


async def test_one_key_in_two_stacks_is_two_sandboxes(
    provider: DaytonaProvider, account: DaytonaAccount, spec: SandboxSpec
) -> None:
    async with opened(account) as other:
        assert (await provider.create(spec)).id != (await other.create(spec)).id


async def test_keepalive_keeps_a_silent_sandbox_running(
    provider: DaytonaProvider, control: httpx.AsyncClient
) -> None:
    kept, silent = [await provider.create(make_spec()) for _ in range(2)]
    await pass_time(control, 9)
    await kept.keepalive()
    await pass_time(control, 9)
    assert await provider.status(kept.id) is Status.RUNNING
    assert await provider.status(silent.id) is Status.STOPPED
    with pytest.raises(Unreachable):
        await silent.keepalive()


async def test_a_freeze_does_not_cut_the_sandbox_off(sandbox: CloudSandbox) -> None:
    count = "i=0; while :; do i=$((i+1)); echo $i >/home/agent/count; done"
    await sandbox.spawn(Command(["sh", "-c", count], cwd="/"))
    async with asyncio.timeout(10):
        while (await run(sandbox, "test", "-s", "/home/agent/count"))[0] != 0:
            await asyncio.sleep(0.02)
    await sandbox.freeze()
    before = await sandbox.read("/home/agent/count")
    assert await run(sandbox, "sleep", "0.2") == (0, b"")
    assert await sandbox.read("/home/agent/count") == before
    await sandbox.thaw()
    async with asyncio.timeout(10):
        while await sandbox.read("/home/agent/count") == before:
            await asyncio.sleep(0.02)


# ---- the snapshot --------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose Dockerfile copies nothing: the SDK uploads by TLS only."""
    (tmp_path / "sandbox-image").mkdir()
    (tmp_path / "sandbox-image" / "Dockerfile").write_text("ARG BASE=a\nFROM ${BASE}\n")
    return tmp_path


async def posts(control: httpx.AsyncClient) -> int:
    """How many snapshots were asked for since `count_posts`."""
    (fault,) = (await control.get("/_emulator/faults")).json()
    return int(fault["hits"])


async def count_posts(control: httpx.AsyncClient) -> None:
    await inject(control, "delay", method="POST", path="^/api/snapshots$", times=None)


async def test_a_second_build_does_nothing(
    account: DaytonaAccount,
    client: AsyncDaytona,
    checkout: Path,
    spec: SandboxSpec,
    control: httpx.AsyncClient,
) -> None:
    named = replace(account, snapshot=f"built-{secrets.token_hex(4)}")
    said: list[str] = []
    await count_posts(control)
    assert await build_image(named, checkout, {"BASE": "b"}, said.append) == named.snapshot
    assert await posts(control) == 1
    assert any("ARG BASE=b" in line for line in said)
    assert await build_image(named, checkout) == named.snapshot
    assert await posts(control) == 1
    async with opened(named) as provider:
        assert await provider.trouble() == ""
        assert await run(await provider.create(spec), "true") == (0, b"")
    await client.snapshot.delete(named.snapshot)


async def test_two_builds_at_once_are_one(
    account: DaytonaAccount, client: AsyncDaytona, checkout: Path
) -> None:
    named = replace(account, snapshot=f"built-{secrets.token_hex(4)}")
    await asyncio.gather(build_image(named, checkout), build_image(named, checkout))
    assert (await client.snapshot.get(named.snapshot)).state == "active"
    await client.snapshot.delete(named.snapshot)


async def test_a_failed_build_is_said_and_the_next_one_starts_anew(
    account: DaytonaAccount, client: AsyncDaytona, checkout: Path
) -> None:
    named = replace(account, snapshot=f"built-{secrets.token_hex(4)}")
    dockerfile = checkout / "sandbox-image" / "Dockerfile"
    good = dockerfile.read_text()
    dockerfile.write_text("RUN true\n")
    with pytest.raises(InvalidSpec):
        await build_image(named, checkout)
    dockerfile.write_text(good)
    assert await build_image(named, checkout) == named.snapshot
    await client.snapshot.delete(named.snapshot)


def test_the_checkouts_own_dockerfile_can_be_staged(tmp_path: Path) -> None:
    stage(ROOT, tmp_path, {"GEESEFS": "0.43.3"})
    image = Image.from_dockerfile(tmp_path / "Dockerfile")
    lines = image.dockerfile().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    sources = {word for words in copied for word in words if not words[0].startswith("--from")}
    assert "sandbox-image/boxd" in sources
    assert [word for word in sources if "*" not in word and not (tmp_path / word).exists()] == []
    assert list(tmp_path.rglob("__pycache__")) == []
    assert "ARG GEESEFS=0.43.3\n" in image.dockerfile()


def test_an_argument_that_the_dockerfile_has_not_is_refused(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="NONE_SUCH"):
        stage(checkout, tmp_path / "staged", {"NONE_SUCH": "1"})
