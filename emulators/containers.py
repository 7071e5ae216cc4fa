"""Boxes as containers of a Docker engine on this machine.

The engine starts, freezes and ends them. Commands and connections go in by the namespaces of the
container's first process, which takes a tenth of the time of the engine's own exec.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp

from emulators import ownership
from emulators.boxes import BoxFailed
from emulators.inside import Inside
from emulators.lifecycle import LivingBox, destroy_all
from emulators.options import Options

ENGINE_SECONDS = 120
NOT_FOUND, CONFLICT = 404, 409
OPENED = f"{ownership.MARK}.opened"
FUSE = Path("/dev/fuse")
# SYS_ADMIN mounts; the others are what root inside needs for other users' files and processes.
CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "KILL", "FOWNER")


async def trouble(options: Options) -> str:
    """Why there can be no containers here; nothing when there can."""
    if os.geteuid() != 0:
        return "only root can enter containers"
    if not options.engine.is_socket():
        return f"there is no Docker engine at {options.engine}"
    try:
        async with open_engine(options) as engine:
            await engine.images.inspect(options.image)
    except aiodocker.DockerError as error:
        return f"the engine at {options.engine} says: {error.message}"
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        return f"the engine at {options.engine} does not answer: {error}"
    return ""


@contextlib.asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Containers]:
    """Raises: BoxFailed."""
    async with open_engine(options) as engine:
        boxes = Containers(engine, options)
        await boxes.remove_strays()
        try:
            yield boxes
        finally:
            await boxes.remove_all()


class Containers:
    """The `Boxes`."""

    def __init__(self, engine: aiodocker.Docker, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._owner = ownership.ours()
        # apart from the owner: a process may open more than one of these
        self._mark = secrets.token_hex(4)
        self._made: dict[str, LivingBox] = {}

    async def create(self, name: str, env: Mapping[str, str]) -> LivingBox:
        container = f"{ownership.MARK}.{self._owner}.{self._mark}.{name}"
        with told():
            await self._engine.containers.create(self._request(), name=container)
        machine = _Container(self._engine, container)
        box = self._made[name] = LivingBox(name, machine, env, self._options.reach)
        try:
            await box.start()
        except BaseException:
            await asyncio.shield(box.destroy())
            raise
        return box

    async def remove_all(self) -> None:
        """Raises: BoxFailed."""
        await destroy_all(self._made.values())
        # also one whose making was cut off
        await self._remove(f"{OPENED}={self._mark}", lambda owner: owner == self._owner)

    async def remove_strays(self) -> None:
        """Remove containers of emulators that are dead. Raises: BoxFailed."""
        await self._remove(ownership.MARK, ownership.is_dead)

    async def _remove(self, label: str, chosen: Callable[[str], bool]) -> None:
        with told():
            labelled = json.dumps({"label": [label]})
            found = await self._engine.containers.list(all=1, filters=labelled)
            for container in found:
                if chosen(container["Labels"][ownership.MARK]):
                    await _remove(container)

    def _request(self) -> dict[str, Any]:
        options = self._options
        mounts = []
        if options.geesefs is not None:
            mounts.append(
                {
                    "Type": "bind",
                    "Source": str(options.geesefs.resolve()),
                    "Target": "/opt/holdfast/geesefs",
                    "ReadOnly": True,
                }
            )
        device = {"PathOnHost": str(FUSE), "PathInContainer": str(FUSE), "CgroupPermissions": "rwm"}
        return {
            "Image": options.image,
            "Hostname": "sandbox",
            "Entrypoint": ["sleep", "infinity"],
            "Cmd": [],
            "Labels": {ownership.MARK: self._owner, OPENED: self._mark},
            "HostConfig": {
                "NetworkMode": "none",
                "Init": True,  # what a command leaves behind is reaped
                "CapDrop": ["ALL"],
                "CapAdd": list(CAPABILITIES),
                "Devices": [device] if FUSE.exists() else [],
                "SecurityOpt": ["apparmor=unconfined"],  # its default profile forbids mount
                "Mounts": mounts,
                "LogConfig": {"Type": "none"},
            },
        }


class _Container:
    """The `Machine`."""

    def __init__(self, engine: aiodocker.Docker, name: str) -> None:
        self.environment: Mapping[str, str] = {}
        self._container = engine.containers.container(name)

    async def boot(self) -> Inside:
        with told():
            await self._container.start()
            shown = await self._container.show()
        pid = int(shown["State"]["Pid"])
        if not is_in_container(pid, shown["Id"]):
            raise BoxFailed("the engine's containers are not processes of this machine")
        self.environment = dict(pair.split("=", 1) for pair in shown["Config"]["Env"])
        inside = Inside(pid)
        if shown["HostConfig"]["Devices"]:
            # As clouds have it. An engine passes the host's mode on, whatever it is.
            command = await inside.exec(
                ["chmod", "0666", str(FUSE)], cwd="/", env=self.environment, user="root"
            )
            await command.wait()
            command.close()
        return inside

    async def halt(self) -> None:
        with told(), _unless(NOT_FOUND, CONFLICT):  # not there, or not running
            await self._container.kill(signal="KILL")

    async def freeze(self) -> None:
        with told():
            await self._container.pause()

    async def thaw(self) -> None:
        with told():
            await self._container.unpause()

    async def remove(self) -> None:
        with told():
            await _remove(self._container)


def is_in_container(pid: int, container_id: str) -> bool:
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _remove(container: Any) -> None:
    with _unless(NOT_FOUND, CONFLICT):  # gone, or being removed by somebody else
        await container.delete(force=True, v=True)


def open_engine(options: Options) -> aiodocker.Docker:
    timeout = aiohttp.ClientTimeout(total=ENGINE_SECONDS)
    return aiodocker.Docker(f"unix://{options.engine}", timeout=timeout)


@contextlib.contextmanager
def _unless(*statuses: int) -> Iterator[None]:
    """An answer that tells that there is nothing to be done is none of our errors."""
    try:
        yield
    except aiodocker.DockerError as error:
        if error.status not in statuses:
            raise


@contextlib.contextmanager
def told() -> Iterator[None]:
    """The engine's errors as ours."""
    try:
        yield
    except aiodocker.DockerError as error:
        raise BoxFailed(f"the Docker engine says: {error.message}") from error
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise BoxFailed(f"the Docker engine does not answer: {error}") from error
