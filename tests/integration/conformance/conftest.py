"""Every provider of the registry, bare and with each engine, one after the other.

A test that asks for `subject` runs on all of them; a module with `WAYS` or `ENGINES` of its own, on
those. What a provider cannot do it has declared, and the skip says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast
from uuid import uuid4

import httpx
import pytest

from emulators.options import Options
from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.client import RemoteHost
from sidecar.boxhost.contract import MountHost
from sidecar.boxhost.daemons import Daemons, Geesefs
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Command, Provider, Sandbox, SandboxSpec
from sidecar.providers.cloud import Patience
from sidecar.providers.docker import DockerProvider
from sidecar.providers.local import LocalProvider
from sidecar.workspace.checkpoint import with_checkpoint
from sidecar.workspace.engine import Durable
from sidecar.workspace.fencing import Fence
from sidecar.workspace.geesefs import GeesefsInBox, with_geesefs
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.in_box import InBox, Parts
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.conformance import ways
from tests.integration.conformance.ways import (
    BY_BOX_HOST,
    CLOUDS,
    WAYS,
    Levers,
    Opened,
    OpenedWith,
    cloud_provider,
)
from tests.integration.conformance.ways import docker_provider as docker_provider
from tests.support.box_host import Place, served
from tests.support.emulators.fixtures import Emulator, as_arguments, backend_options, started
from tests.support.emulators.fixtures import root as root
from tests.support.requirements import missing
from tests.support.services import STATE_BUCKET, SeaweedFS, short_directory
from tests.support.store_gate import Gate, store_gate

SYNC_SECONDS = 15.0
Make = Callable[..., Awaitable[Sandbox]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chosen" in metafunc.fixturenames:
        chosen = [
            (way, engine)
            for way in getattr(metafunc.module, "WAYS", WAYS)
            for engine in getattr(metafunc.module, "ENGINES", ways.ENGINES)
        ]
        params = [
            # All tests of a subject go to one worker, so that it is made once.
            pytest.param((way, engine), id=name, marks=pytest.mark.xdist_group(name))
            for way, engine in chosen
            for name in [f"{way}-{engine}"]
        ]
        metafunc.parametrize("chosen", params, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of one subject after each other, whichever file they are in."""
    order = [(way, engine) for way in WAYS for engine in ways.ENGINES]
    places = [n for n, item in enumerate(items) if _subject_of(item) in order]
    ours = sorted((items[n] for n in places), key=lambda item: order.index(_subject_of(item)))
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _subject_of(item: pytest.Item) -> tuple[str, str]:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("chosen") if callspec is not None else None
    return cast("tuple[str, str]", found) if isinstance(found, tuple) else ("", "")


# ---- what is there for all of them ---------------------------------------------------------------


@pytest.fixture(scope="session")
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened


@pytest.fixture(scope="session")
async def keys(address: StoreAddress) -> AsyncIterator[SessionKeys]:
    async with SessionKeys.open(address) as opened:
        yield opened


@pytest.fixture(scope="session")
async def gate(store_service: SeaweedFS) -> AsyncIterator[Gate]:
    async with store_gate(store_service) as opened:
        yield opened


@pytest.fixture(scope="session")
async def service(bwrap: Path, address: StoreAddress) -> AsyncIterator[tuple[Place, RemoteHost]]:
    """A box-host."""
    with short_directory() as home:
        more = {
            "HOLDFAST_S3_ENDPOINT": address.endpoint,
            "HOLDFAST_S3_BUCKET": address.bucket,
            "HOLDFAST_GEESEFS": str(_geesefs() or ""),
        }
        place = Place(home, bwrap, more)
        async with served(place) as host:
            yield place, host


@pytest.fixture(scope="session")
def emulated(request: pytest.FixtureRequest) -> Options:
    """How boxes of a cloud are made here, in containers if there is an engine."""
    try:
        return backend_options("container", request)
    except pytest.skip.Exception:
        return backend_options("process", request)


def _emulator(name: str) -> Callable[..., AsyncIterator[Emulator]]:
    @pytest.fixture(scope="session", name=f"{name}_emulator")
    async def emulator(emulated: Options, gate: Gate) -> AsyncIterator[Emulator]:
        """One process for all tests."""
        argv = ["-m", "emulators", name, "--port", "0", *as_arguments(emulated)]
        argv += ["--reach", str(gate.port)]
        if (geesefs := _geesefs()) is not None:
            argv += ["--geesefs", str(geesefs)]
        async with started(argv) as running:
            yield running

    return emulator


def _geesefs() -> Path | None:
    from shutil import which

    found = which("geesefs")
    return None if found is None else Path(found)


e2b_emulator = _emulator("e2b")
modal_emulator = _emulator("modal")
daytona_emulator = _emulator("daytona")


# ---- one of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """What a subject needs that is not its own."""

    way: str
    engine: str
    emulator: Emulator | None = None
    service: tuple[Place, RemoteHost] | None = None
    image: str = ""
    geesefs: Path | None = None


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> Chosen:
    """Skips for what is missing on this machine."""
    way, engine = request.param
    found = Chosen(way, engine)
    if engine == "geesefs":
        request.getfixturevalue("fuse")
        found = replace(found, geesefs=request.getfixturevalue("geesefs"))
    if way in CLOUDS:
        if engine != "bare" and request.getfixturevalue("emulated").backend == "process":
            missing("docker", "boxd has no walker in boxes that are no containers")
        return replace(found, emulator=request.getfixturevalue(f"{way}_emulator"))
    if way == BY_BOX_HOST:
        return replace(found, service=request.getfixturevalue("service"))
    if way == "docker":
        return replace(found, image=request.getfixturevalue("sandbox_image"))
    return found


@dataclass(frozen=True)
class Subject:
    """A provider, bare or with an engine. `another` is what one more sidecar of the stack has, and
    `stranger` one of another stack on the same account or engine. `with_patience` is a cloud's
    provider once more, with other limits."""

    way: str
    engine: str
    home: Path
    bare: Provider
    provider: Provider
    another: Opened
    stranger: Opened | None
    with_patience: OpenedWith | None
    parts: Parts

    @property
    def durable(self) -> Durable:
        assert self.engine != "bare"
        return cast("Durable", self.provider)

    def spec(self) -> SandboxSpec:
        """Of a session of its own."""
        session = str(uuid4())
        gateway = self.home / "run" / "gateway" / session / "sock"
        gateway.parent.mkdir(parents=True)
        gateway.touch()
        labels = {"session": session, "epoch": "1"}
        spec = SandboxSpec(f"{session}-1", session, labels, gateway)
        if self.engine == "bare" and self.bare.capabilities.mount == "host":
            # stands for a mounted workspace
            directory = Mounts(self.home / "data").parent(session)
            (directory / "workspace").chmod(0o777)
            return replace(spec, session_dir=directory)
        return spec

    async def create(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.provider.create(spec)
        if self.engine == "bare" and self.bare.capabilities.mount != "host":
            await sandbox.exec(Command(["mkdir", "-p", "/session/workspace"], cwd="/"))
        return sandbox

    async def end(self, session_id: str) -> None:
        """Everything of a session: its keys, too, as the store is slow with many of them."""
        async for info in self.bare.list({"session": session_id}):
            await self.bare.destroy(info.sandbox_id)
        if self.engine != "bare":
            await self.durable.release(session_id, forget=True)


def again(spec: SandboxSpec, epoch: int) -> SandboxSpec:
    """The next sandbox of the same session."""
    labels = {**spec.labels, "epoch": str(epoch)}
    return replace(spec, key=f"{spec.session_id}-{epoch}", labels=labels)


@pytest.fixture(scope="session")
async def subject(
    chosen: Chosen, bwrap: Path, gate: Gate, store: Store, keys: SessionKeys, address: StoreAddress
) -> AsyncIterator[Subject]:
    async with contextlib.AsyncExitStack() as stack:
        home = stack.enter_context(short_directory())
        if chosen.service is not None:
            home = chosen.service[0].home
        home.chmod(0o755)  # a container's user must get through
        mounts = _mounts(chosen, home, address)
        manifests = Manifests(store.in_bucket(STATE_BUCKET))
        parts = Parts(store, manifests, Fence(mounts, keys), address)
        opened, stranger, opened_with = _ways_in(chosen, home, bwrap, stack)

        def wrapped(provider: Provider) -> Provider:
            if chosen.engine == "checkpoint":
                durable: object = with_checkpoint(provider, parts, SYNC_SECONDS, "a test")
            elif chosen.engine == "bare":
                return provider
            elif provider.capabilities.mount == "host":
                durable = with_geesefs(provider, mounts, store, manifests, keys, "a test")
            else:
                inside = GeesefsInBox(gate.url, address.bucket)
                durable = InBox(provider, [inside], parts, "a test")
            return cast("Provider", durable)

        @contextlib.asynccontextmanager
        async def another(opened: Opened = opened) -> AsyncIterator[Provider]:
            async with opened() as provider:
                made = wrapped(provider)
                yield made
                if isinstance(made, InBox):
                    await made.aclose()

        def with_patience(patience: Patience) -> AbstractAsyncContextManager[Provider]:
            assert opened_with is not None
            return another(partial(opened_with, patience))

        bare = await stack.enter_async_context(opened())
        made = wrapped(bare)
        yield Subject(
            *(chosen.way, chosen.engine, home, bare, made, another, stranger),
            with_patience if opened_with else None,
            parts,
        )
        if isinstance(made, InBox):
            await made.aclose()
        async for info in bare.list({}):
            await bare.destroy(info.sandbox_id)
        await Mounts(home / "data").stop_all()


def _mounts(chosen: Chosen, home: Path, address: StoreAddress) -> MountHost:
    if chosen.service is not None:
        return chosen.service[1].mounts
    daemons: dict[str, Daemons] = {}
    if chosen.geesefs is not None:
        daemons["geesefs"] = Geesefs(chosen.geesefs, address.endpoint, address.bucket)
    return OwnMounts(Mounts(home / "data"), daemons, address.bucket)


def _ways_in(
    chosen: Chosen, home: Path, bwrap: Path, stack: contextlib.AsyncExitStack
) -> tuple[Opened, Opened | None, OpenedWith | None]:
    """To the provider; to one of another stack, where several share what they run on; and to the
    same provider with other limits, where it is a cloud's."""
    if chosen.emulator is not None:
        way, engine, emulator = chosen.way, chosen.engine, chosen.emulator
        ours, theirs = ways.new_cloud(), ways.new_cloud()
        return (
            lambda: cloud_provider(way, engine, emulator, ours),
            lambda: cloud_provider(way, engine, emulator, theirs),
            lambda patience: cloud_provider(way, engine, emulator, ours, patience),
        )
    if chosen.way == "docker":
        host = ways.docker_host(home, chosen.image)
        other = ways.docker_host(home, chosen.image)
        return lambda: DockerProvider.open(host), lambda: DockerProvider.open(other), None
    if chosen.service is not None:
        remote = chosen.service[1].boxes
        return lambda: contextlib.nullcontext(LocalProvider(remote)), None, None

    def local() -> AbstractAsyncContextManager[Provider]:
        return contextlib.nullcontext(
            LocalProvider(OwnBoxes(Boxes(home / "data", home / "run", bwrap), {}))
        )

    stack.push_async_callback(Boxes(home / "data", home / "run", bwrap).stop_all)
    return local, None, None


@pytest.fixture(scope="session")
def provider(subject: Subject) -> Provider:
    return subject.provider


@pytest.fixture(scope="session")
async def shared_spec(subject: Subject) -> SandboxSpec:
    return subject.spec()


@pytest.fixture(scope="session")
async def sandbox(subject: Subject, shared_spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """One for all tests of a subject that leave it as it is, with no process in it."""
    yield await subject.create(shared_spec)
    await subject.end(shared_spec.session_id)


@pytest.fixture
async def make(subject: Subject) -> AsyncIterator[Make]:
    """`make(spec)`: a sandbox of the test's own, ended with it."""
    sessions: set[str] = set()

    async def one(spec: SandboxSpec | None = None) -> Sandbox:
        wanted = spec or subject.spec()
        sessions.add(wanted.session_id)
        return await subject.create(wanted)

    yield one
    for session_id in sessions:
        await subject.end(session_id)


@pytest.fixture
async def levers(subject: Subject, chosen: Chosen) -> AsyncIterator[Levers]:
    """Only clouds have them."""
    assert chosen.emulator is not None
    async with httpx.AsyncClient(
        base_url=chosen.emulator.control, timeout=30, trust_env=False
    ) as http:
        found = Levers(http, ways.WIRES[subject.way])
        yield found
        await found.mend()
