"""The docker provider: a container per session, without a network, a capability or a secret.

The engine is asked for containers only. Everything inside goes through boxd, by sockets in a
directory of the container's own (docs/adr/0013-containers-without-a-network.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp

from contracts.errors import (
    InvalidSpec,
    NoCapacity,
    SandboxError,
    SandboxGone,
    Unreachable,
    Unsupported,
)
from sidecar.providers.base import (
    Capabilities,
    Endpoint,
    SandboxInfo,
    SandboxSpec,
    Status,
)
from sidecar.providers.boxd import BoxSocket, BySocket, NoAnswer
from sidecar.providers.boxd_sandbox import BoxdSandbox

AGENT_UID = 1000
AGENT_PORT = 2468
GATEWAY_PORT = 8080
START_SECONDS = 30
POLL_SECONDS = 0.01
ENGINE_SECONDS = 60
LABELS = ("session", "epoch")
LIVING = ("running", "paused", "restarting")
NOT_FOUND, NO_ENGINE = 404, 900  # the latter is aiodocker's own


@dataclass(frozen=True)
class DockerHost:
    """Where containers are made, and of what. Paths with `_root` are as the engine sees them."""

    socket: Path
    image: str
    stack: str
    run_dir: Path
    mounts_root: Path
    run_root: Path
    memory: int
    cpus: float
    pids: int
    # An engine proxy makes and removes the directories of containers itself.
    proxied: bool = False


class DockerProvider:
    name = "docker"
    capabilities = Capabilities(mount="host", freeze=True, uid=AGENT_UID)

    def __init__(self, engine: aiodocker.Docker, host: DockerHost) -> None:
        self._engine = engine
        self._host = host
        self._creating = asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, host: DockerHost) -> AsyncIterator[DockerProvider]:
        timeout = aiohttp.ClientTimeout(total=ENGINE_SECONDS)
        async with aiodocker.Docker(f"unix://{host.socket}", timeout=timeout) as engine:
            yield cls(engine, host)

    async def trouble(self) -> str:
        try:
            await self._engine.images.inspect(self._host.image)
        except aiodocker.DockerError as error:
            if error.status == NOT_FOUND:
                return f"there is no image {self._host.image}: build it with `make images`"
            if error.status != NO_ENGINE:
                return f"the engine refuses: {error.message}"
            why = error.message
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
        else:
            return ""
        return f"no Docker engine answers at {self._host.socket}: {why}"

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        name = self._name(spec.key)
        place = self._place(spec.key)
        async with self._creating:
            with _told("create"):
                known = await self._inspect(name)
                if known is None or not _lives(known):
                    await self.destroy(name)
                    if not self._host.proxied:
                        _make_for_agent(place)
                        _give_to_agent(spec.gateway_socket)
                    await self._engine.containers.create(self._request(spec), name=name)
                    await self._container(name).start()
            return await self._connected(name, spec.labels, place)

    async def attach(self, sandbox_id: str) -> DockerSandbox:
        with _told("attach"):
            found = await self._inspect(sandbox_id)
        if found is None or not _lives(found):
            raise SandboxGone(f"the container {sandbox_id} is gone", op="attach")
        labels = _labels(found["Config"]["Labels"])
        place = self._place(found["Config"]["Labels"]["holdfast.key"])
        return await self._connected(sandbox_id, labels, place)

    async def status(self, sandbox_id: str) -> Status:
        try:
            with _told("status"):
                found = await self._inspect(sandbox_id)
        except Unreachable:
            return Status.UNKNOWN
        return Status.RUNNING if found is not None and _lives(found) else Status.GONE

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        wanted = [f"holdfast.stack={self._host.stack}"]
        wanted += [f"holdfast.{name}={value}" for name, value in labels.items()]
        with _told("list"):
            found = await self._engine.containers.list(all=1, filters=json.dumps({"label": wanted}))
        for container in found:
            shown: dict[str, Any] = container._container  # what the engine listed
            alive = shown["State"] in LIVING
            created = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(shown["Created"]))
            yield SandboxInfo(
                shown["Names"][0].lstrip("/"),
                _labels(shown["Labels"]),
                Status.RUNNING if alive else Status.STOPPED,
                created,
            )

    async def destroy(self, sandbox_id: str) -> bool:
        """A container that has ended is removed too, and counts as gone already."""
        with _told("destroy"):
            found = await self._inspect(sandbox_id)
            if found is None:
                return False
            with contextlib.suppress(_Missing), _missing():
                await self._container(sandbox_id).delete(force=True, v=True)
            await self._prove_gone(sandbox_id)
        if not self._host.proxied:
            place = self._place(found["Config"]["Labels"]["holdfast.key"])
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return _lives(found)

    async def keepalive(self, sandbox_id: str) -> None:
        """A container is ended by us alone."""

    async def _prove_gone(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while await self._inspect(name) is not None:
            if time.monotonic() > deadline:
                raise Unreachable(f"the container {name} is still there", op="destroy")
            await asyncio.sleep(POLL_SECONDS)

    async def _connected(self, name: str, labels: Mapping[str, str], place: Path) -> DockerSandbox:
        """Wait until boxd answers; it does as soon as the container runs."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return DockerSandbox(self, name, labels, place)
            except NoAnswer as error:
                found = await self._inspect(name)
                if found is None or not _lives(found):
                    raise Unreachable(f"the container {name} ended at once", op="create") from error
                if time.monotonic() > deadline:
                    raise Unreachable(f"{name}: {error}", op="create") from error
            await asyncio.sleep(POLL_SECONDS)

    def _container(self, name: str) -> Any:
        return self._engine.containers.container(name)

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            with _missing():
                shown: dict[str, Any] = await self._container(name).show()
        except _Missing:
            return None
        return shown

    def _name(self, key: str) -> str:
        return f"holdfast-{self._host.stack}-{key}"

    def _place(self, key: str) -> Path:
        return self._host.run_dir / "docker" / _short(key)

    def _request(self, spec: SandboxSpec) -> dict[str, Any]:
        """Everything that a container may have. The engine proxy knows these fields and no other
        (sidecar/engine_proxy)."""
        host = self._host
        session = spec.session_id
        box = host.run_root / "docker" / _short(spec.key)
        gateway = host.run_root / "gateway" / session
        labels = {"stack": host.stack, "key": spec.key, **spec.labels}
        return {
            "Image": host.image,
            "User": f"{AGENT_UID}:{AGENT_UID}",
            "Hostname": "sandbox",
            "Labels": {f"holdfast.{name}": value for name, value in labels.items()},
            "HostConfig": {
                "Mounts": [
                    self._session_mount(spec),
                    {"Type": "bind", "Source": str(box), "Target": "/run/holdfast/box"},
                    {
                        "Type": "bind",
                        "Source": str(gateway),
                        "Target": "/run/holdfast/gateway",
                        "ReadOnly": True,
                    },
                    # goes with the container, as it has no name
                    {"Type": "volume", "Target": "/home/agent"},
                ],
                "Tmpfs": {"/tmp": "rw,nosuid,nodev,exec,size=1g,mode=1777"},  # noqa: S108 - the box's own
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "Memory": host.memory,
                "NanoCpus": int(host.cpus * 1_000_000_000),
                "PidsLimit": host.pids,
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            },
        }

    def _session_mount(self, spec: SandboxSpec) -> dict[str, Any]:
        """The session's directory on the host, or a disk that goes with the container."""
        if spec.session_dir is None:
            return {"Type": "volume", "Target": "/session"}
        return {
            "Type": "bind",
            "Source": str(self._host.mounts_root / spec.session_id),
            "Target": "/session",
            "BindOptions": {"Propagation": "rslave"},
        }


class DockerSandbox(BoxdSandbox):
    """One container. Its sockets are held open: they are the same ones for as long as it lives."""

    gateway_url = f"http://127.0.0.1:{GATEWAY_PORT}"
    gateway_token = "by-socket"  # noqa: S105 - no secret: its socket tells who it is

    def __init__(
        self, provider: DockerProvider, name: str, labels: Mapping[str, str], place: Path
    ) -> None:
        """Raises: NoAnswer."""
        super().__init__(name, labels, BySocket(BoxSocket(place / "control.sock")), provider)
        self._agent = BoxSocket(place / "agent.sock")

    def endpoint(self, port: int) -> Endpoint:
        if port != AGENT_PORT:
            raise Unsupported(f"port {port} is not carried out of a container", op="endpoint")
        return Endpoint("http://sandbox", socket=self._agent.path)


class _Missing(Exception):
    """The engine knows no such container."""


@contextlib.contextmanager
def _missing() -> Any:
    try:
        yield
    except aiodocker.DockerError as error:
        if error.status == NOT_FOUND:
            raise _Missing from error
        raise


@contextlib.contextmanager
def _told(op: str) -> Any:
    """The engine's errors as ours."""
    try:
        yield
    except aiodocker.DockerError as error:
        raise _engine_error(error, op) from error
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise Unreachable(
            f"the Docker engine does not answer: {error}",
            op=op,
            hint="Is it running? `docker version` tells.",
        ) from error


def _engine_error(error: aiodocker.DockerError, op: str) -> SandboxError:
    message = f"the Docker engine says: {error.message}"
    if error.status == NOT_FOUND and op == "create":
        return InvalidSpec(message, op=op, hint="`make images` builds the sandbox's image.")
    if error.status in (400, 403):
        return InvalidSpec(message, op=op)
    if "no space left" in str(error.message):
        return NoCapacity(message, op=op, hint="Make room on the engine's disk.")
    return Unreachable(message, op=op)


def _lives(found: Mapping[str, Any]) -> bool:
    return found["State"]["Status"] in LIVING


def _labels(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[f"holdfast.{name}"] for name in LABELS if f"holdfast.{name}" in given}


def _short(key: str) -> str:
    """A directory name for sockets, whose paths must be short."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _make_for_agent(place: Path) -> None:
    """An empty directory that the container's user may write to."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        os.chown(place, AGENT_UID, AGENT_UID)


def _give_to_agent(gateway: Path) -> None:
    """The session's way to a model: its socket, in a directory of its own."""
    if os.geteuid() == 0:
        for path in (gateway.parent, gateway):
            os.chown(path, AGENT_UID, AGENT_UID)
