"""checkpoint: the workspace on the sandbox's own disk, carried to the store and back."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest

from contracts.bodies import RunRequest
from contracts.errors import MountFailed, NotDurable, WorkspaceBusy, WorkspaceMounted
from contracts.events import EventBase
from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Command, Provider, SandboxSpec
from sidecar.providers.local import LocalProvider
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.workspace.checkpoint import MARK, with_checkpoint
from sidecar.workspace.engine import DurableSandbox
from sidecar.workspace.fencing import Fence
from sidecar.workspace.iam import SessionKey, SessionKeys
from sidecar.workspace.in_box import InBox, Parts
from sidecar.workspace.manifest import Edit, Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.conformance.conftest import docker_provider
from tests.integration.workspace.conftest import HostOf

SECONDS = 15.0


@pytest.fixture
def parts(
    short_dir: Path, store: Store, manifests: Manifests, keys: SessionKeys, address: StoreAddress
) -> Parts:
    host = OwnMounts(Mounts(short_dir / "data"), {}, address.bucket)
    return Parts(store, manifests, Fence(host, keys), address)


@pytest.fixture(params=["local", "docker"])
async def provider(
    request: pytest.FixtureRequest, short_dir: Path, bwrap: Path
) -> AsyncIterator[Provider]:
    if request.param == "docker":
        image = request.getfixturevalue("sandbox_image")
        short_dir.chmod(0o755)
        async with docker_provider(short_dir, image) as made:
            yield made
        return
    boxes = Boxes(short_dir / "data", short_dir / "run", bwrap)
    yield LocalProvider(OwnBoxes(boxes, {}))
    await boxes.stop_all()


@pytest.fixture
async def wrapped(provider: Provider, parts: Parts) -> AsyncIterator[Callable[[], InBox]]:
    """One sidecar after the other, by call."""
    made: list[InBox] = []

    def wrap() -> InBox:
        made.append(with_checkpoint(provider, parts, SECONDS, "a test"))
        return made[-1]

    yield wrap
    for durable in made:
        await durable.aclose()


@pytest.fixture
def session() -> str:
    return str(uuid4())


@pytest.fixture
def spec(short_dir: Path, session: str) -> SandboxSpec:
    gateway = short_dir / "run" / "gateway" / session / "sock"
    gateway.parent.mkdir(parents=True)
    gateway.touch()
    labels = {"session": session, "epoch": "1"}
    return SandboxSpec(f"{session}-1", session, labels, gateway)


def again(spec: SandboxSpec, epoch: int) -> SandboxSpec:
    labels = {**spec.labels, "epoch": str(epoch)}
    return replace(spec, key=f"{spec.session_id}-{epoch}", labels=labels)


async def sh(sandbox: DurableSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-ec", script]))
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


async def stored(store: Store, session: str, path: str) -> bytes | None:
    found = await store.get(f"{session}/{path}")
    return None if found is None else found[0]


async def test_files_of_every_kind_come_back_in_another_sandbox(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    durable = wrapped()
    first = await durable.create(spec)
    await sh(
        first,
        "echo one > a; mkdir -p d/e empty; echo two > d/e/b; chmod 755 a; ln -s d/e/b link;"
        "touch -d '2020-01-02 03:04:05' a; : > nothing; head -c 9000000 /dev/urandom > large",
    )
    digest = await sh(first, "sha256sum large")
    async with first.frozen():
        proof = await first.workspace.barrier(str(uuid4()), 1, first.held)
    assert (proof.engine, proof.files) == ("checkpoint", 4)
    assert await stored(store, spec.session_id, "d/e/b") == b"two\n"
    assert await durable.destroy(first.id)

    second = await wrapped().create(again(spec, 2))
    assert second.id != first.id
    assert await sh(second, "cat a link; sha256sum large") == "one\ntwo\n" + digest
    shown = "stat -c '%a %Y' a; readlink link; test -d empty; test -f nothing; test ! -s nothing"
    assert await sh(second, shown) == "755 1577934245\nd/e/b\n"


async def test_a_receipt_has_what_changed_and_not_what_was_deleted(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store, manifests: Manifests
) -> None:
    sandbox = await wrapped().create(spec)
    await sh(sandbox, "mkdir d; echo 1 > d/x; echo 1 > keep; echo 1 > becomes")
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await sh(sandbox, "rm -r d; rm becomes; mkdir becomes; echo 3 > becomes/inside; echo 22 > keep")
    proof = await sandbox.workspace.barrier(str(uuid4()), 2, sandbox.held)
    assert sorted(await store.list(f"{spec.session_id}/")) == ["becomes/inside", "keep"]
    assert await stored(store, spec.session_id, "keep") == b"22\n"
    latest = await manifests.latest(spec.session_id)
    assert latest is not None
    assert latest.sha256 == proof.manifest_sha256
    keep = next(entry for entry in latest.entries if entry.path == "keep")
    assert keep.sha256 == hashlib.sha256(b"22\n").hexdigest()


async def test_what_was_copied_before_a_sudden_end_is_there_and_the_receipt_says_what_may_not_be(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    durable = wrapped()
    sandbox = await durable.create(spec)
    await sh(sandbox, "echo early > early")
    await sandbox.workspace.sync()
    await sh(sandbox, "echo late > late")
    await durable.destroy(sandbox.id)
    left = await durable.left_behind(spec.session_id)
    proof = await left.barrier(str(uuid4()), 1)
    assert (proof.files, proof.bytes) == (1, len("early\n"))
    assert "lost" in proof.lost
    second = await wrapped().create(again(spec, 2))
    assert await sh(second, "ls") == "early\n"


async def test_another_sidecar_goes_on_with_the_disk_as_it_is(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    sandbox = await wrapped().create(spec)
    await sh(sandbox, "echo 1 > a")
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await sh(sandbox, "echo 2 > a; echo new > b")

    adopted = await wrapped().attach(sandbox.id)
    assert await sh(adopted, "cat a b") == "2\nnew\n"
    assert await stored(store, spec.session_id, "b") == b"new\n", "the probe copies"


async def test_a_disk_that_was_not_filled_whole_takes_nothing_from_the_store(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    await store.put(f"{spec.session_id}/a", b"a")
    await store.put(f"{spec.session_id}/b", b"b")
    sandbox = await wrapped().create(spec)
    # as a sidecar would leave it that died in the middle of filling it
    await sh(sandbox, f"rm a {MARK}")
    later = await wrapped().create(spec)
    assert later.id == sandbox.id
    assert await sh(later, "cat a b") == "ab"
    assert sorted(await store.list(f"{spec.session_id}/")) == ["a", "b"]


@pytest.mark.parametrize(
    "spoil",
    [f"rm {MARK}", f"rm {MARK}; mkdir {MARK}", f"echo another > {MARK}"],
    ids=["missing", "unreadable", "another's"],
)
async def test_a_disk_whose_mark_is_spoilt_is_neither_cleared_nor_taken_for_the_sessions(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store, spoil: str
) -> None:
    sandbox = await wrapped().create(spec)
    await sh(sandbox, "echo kept > a")
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await sh(sandbox, f"echo unsaved > unsaved; {spoil}")
    with pytest.raises(MountFailed, match="holdfast-checkpoint"):
        await wrapped().attach(sandbox.id)
    assert await sh(sandbox, "cat a unsaved") == "kept\nunsaved\n"
    assert sorted(await store.list(f"{spec.session_id}/")) == ["a"]


async def test_what_a_user_has_put_into_the_store_is_fetched_and_what_the_sandbox_deleted_goes(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store, manifests: Manifests
) -> None:
    sandbox = await wrapped().create(spec)
    await sh(sandbox, "echo 1 > a; echo 1 > b; mkdir d")
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await sh(sandbox, "rm a; rm b")
    await store.put(f"{spec.session_id}/new/upload.csv", b"upload")
    await store.put(f"{spec.session_id}/b", b"put again")
    await manifests.edited(spec.session_id, Edit("b"))

    adopted = await wrapped().attach(sandbox.id)
    assert await sh(adopted, "cat new/upload.csv b; test ! -e a") == "uploadput again"
    async with adopted.frozen():
        proof = await adopted.workspace.barrier(str(uuid4()), 2, adopted.held)
    assert proof.files == 2
    assert sorted(await store.list(f"{spec.session_id}/")) == ["b", "new/upload.csv"]


async def test_what_is_in_the_way_of_a_users_file_is_kept_and_so_is_the_file(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    sandbox = await wrapped().create(spec)
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await store.put(f"{spec.session_id}/d/upload", b"upload")
    await sh(sandbox, "ln -s /etc d")
    adopted = await wrapped().attach(sandbox.id)
    with pytest.raises(NotDurable) as error:
        await adopted.workspace.barrier(str(uuid4()), 2, adopted.held)
    assert "d/upload" in error.value.details["files"]
    assert await stored(store, spec.session_id, "d/upload") == b"upload"
    assert await sh(adopted, "readlink d; test ! -e /etc/upload") == "/etc\n"


async def test_a_file_that_was_rewritten_in_place_with_its_old_time_is_in_the_receipt(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    sandbox = await wrapped().create(spec)
    await sh(sandbox, "printf v=1.2.3 > version; touch -d '2020-01-02 03:04:05' version")
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    await sh(
        sandbox,
        "sleep 1.1; touch -r version ref; printf v=1.2.4 | dd of=version conv=notrunc 2>/dev/null;"
        "touch -r ref version; rm ref",
    )
    async with sandbox.frozen():
        await sandbox.workspace.barrier(str(uuid4()), 2, sandbox.held)
    assert await stored(store, spec.session_id, "version") == b"v=1.2.4"


@pytest.mark.parametrize("provider", ["local"], indirect=True)
async def test_a_living_sandbox_has_the_files_also_for_a_sidecar_that_never_saw_it(
    wrapped: Callable[[], InBox], short_dir: Path, spec: SandboxSpec, session: str
) -> None:
    def sidecar() -> Sandboxes:
        live = LiveSandboxes(short_dir / "sidecar")
        gateway = cast(Gateway, OneSocket(spec.gateway_socket))
        return Sandboxes(Providers({}, {"local": wrapped()}), gateway, live, Warmth(600, 8))

    async def emit(event: EventBase) -> None: ...

    request = RunRequest(
        turn_id=uuid4(),
        session_id=UUID(session),
        epoch=1,
        prompt="",
        harness="pi",
        provider="local",
        durability="checkpoint",
    )
    sandbox, _ = await sidecar().acquire(request, emit)
    await sandbox.workspace.barrier(str(uuid4()), 1, sandbox.held)
    later = sidecar()
    assert await later.mounted(UUID(session)) is None, "it is not known yet"
    with pytest.raises(WorkspaceMounted):
        async with later.unmounted(UUID(session)):
            pass
    assert await later.mounted(UUID(session)) is not None

    await sh(sandbox, f"rm {MARK}")
    with pytest.raises(WorkspaceBusy):
        async with sidecar().unmounted(UUID(session)):
            pass
    await wrapped().destroy(sandbox.id)
    async with sidecar().unmounted(UUID(session)):
        pass


class OneSocket:
    """Stands in for the gateway: the same socket for every session."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def open(self, _session_id: str) -> Path:
        return self._socket


async def test_whoever_had_the_session_before_can_store_nothing_more(
    wrapped: Callable[[], InBox], spec: SandboxSpec, store: Store
) -> None:
    zombie = await wrapped().create(spec)
    await sh(zombie, "echo 1 > a")
    await zombie.workspace.barrier(str(uuid4()), 1, zombie.held)
    await wrapped().create(again(spec, 2))
    await sh(zombie, "echo late > a")
    with pytest.raises(NotDurable):
        await zombie.workspace.barrier(str(uuid4()), 1, zombie.held)
    assert await stored(store, spec.session_id, "a") == b"1\n"


@pytest.mark.parametrize("provider", ["local"], indirect=True)
async def test_a_session_moves_between_checkpoint_and_a_mount(
    wrapped: Callable[[], InBox],
    host_of: HostOf,
    engine: str,
    spec: SandboxSpec,
) -> None:
    durable = wrapped()
    first = await durable.create(spec)
    await sh(first, "mkdir d; echo 1 > d/a; chmod 700 d/a; ln -s a d/link; mkdir empty")
    await first.workspace.barrier(str(uuid4()), 1, first.held)
    await durable.destroy(first.id)
    await durable.release(spec.session_id)

    mounted = host_of(engine, "other")
    second = await mounted.create(again(spec, 2))
    assert (
        await sh(second, "cat d/link; stat -c %a d/a; echo 2 >> d/a; test -d empty") == "1\n700\n"
    )
    await second.workspace.barrier(str(uuid4()), 2)
    await mounted.destroy(second.id)
    await mounted.release(spec.session_id)

    third = await wrapped().create(again(spec, 3))
    shown = await sh(third, "cat d/a; readlink d/link; stat -c %a d/a; test -d empty")
    assert shown == "1\n2\na\n700\n"


async def test_a_sandbox_whose_files_cannot_be_brought_is_not_kept(
    provider: Provider, parts: Parts, keys: SessionKeys, short_dir: Path, spec: SandboxSpec
) -> None:
    class Closed(Fence):
        async def admit(self, session_id: str, *, inside: bool = False) -> SessionKey:
            raise MountFailed("nothing is admitted")

    mounts = OwnMounts(Mounts(short_dir / "data"), {}, parts.address.bucket)
    shut = replace(parts, fence=Closed(mounts, keys))
    with pytest.raises(MountFailed):
        await with_checkpoint(provider, shut, SECONDS, "a test").create(spec)
    assert [info async for info in provider.list({})] == []
