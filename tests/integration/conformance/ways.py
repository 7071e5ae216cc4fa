"""The ways in which the registry's providers are run here. A new provider needs one more."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from sidecar.providers import daytona, e2b, modal
from sidecar.providers.base import Provider
from sidecar.providers.cloud import Cloud, Patience
from sidecar.providers.daytona import DaytonaAccount, DaytonaProvider
from sidecar.providers.docker import DockerHost, DockerProvider
from sidecar.providers.e2b import E2BAccount, E2BProvider
from sidecar.providers.modal import ModalAccount, ModalProvider
from tests.support.emulators.fixtures import Emulator

BY_BOX_HOST = "local by a box-host"
# The provider of each.
WAYS: Mapping[str, str] = {
    "local": "local",
    BY_BOX_HOST: "local",
    "docker": "docker",
    "e2b": "e2b",
    "modal": "modal",
    "daytona": "daytona",
}
CLOUDS = ("e2b", "modal", "daytona")
ENGINES = ("bare", "geesefs", "checkpoint")
Opened = Callable[[], AbstractAsyncContextManager[Provider]]
OpenedWith = Callable[[Patience], AbstractAsyncContextManager[Provider]]


def new_cloud() -> Cloud:
    """A stack of its own on the account."""
    return Cloud(
        stack=f"test-{secrets.token_hex(4)}",
        gateway_url="http://127.0.0.1:1",
        secret=secrets.token_bytes(32),
        gateway_secret=secrets.token_bytes(32),
        lifetime=600,
    )


def cloud_provider(
    way: str, engine: str, emulator: Emulator, stack: Cloud, patience: Patience | None = None
) -> AbstractAsyncContextManager[Provider]:
    patience = patience or WIRES[way].patience
    if way == "e2b":
        key = emulator.more["api_key"]
        return E2BProvider.open(
            stack, E2BAccount(key, "holdfast-sandbox", emulator.url, emulator.url), patience
        )
    if way == "daytona":
        account = DaytonaAccount(emulator.more["api_key"], emulator.more["snapshot"], emulator.url)
        return DaytonaProvider.open(stack, account, patience)
    return ModalProvider.open(
        stack,
        ModalAccount(
            token_id=emulator.more["token_id"],
            token_secret=emulator.more["token_secret"],
            app="holdfast",
            image="holdfast-sandbox",
            # in the other one nothing can be mounted
            runtime="vm" if engine == "geesefs" else "gvisor",
            server_url=emulator.url,
        ),
        patience,
    )


def hurried(way: str) -> Patience:
    """Waits of many seconds, as short as a test can be. Only for calls that are to fail: others
    may take longer on a busy machine."""
    return replace(WIRES[way].patience, call=1, boxd_answer=0.5, boxd_start=0.5)


def docker_host(directory: Path, image: str) -> DockerHost:
    return DockerHost(
        socket=Path("/var/run/docker.sock"),
        image=image,
        stack=secrets.token_hex(4),
        run_dir=directory / "run",
        mounts_root=directory / "data" / "mounts",
        run_root=directory / "run",
        memory=1 << 30,
        cpus=2,
        pids=512,
    )


@contextlib.asynccontextmanager
async def docker_provider(directory: Path, image: str) -> AsyncIterator[DockerProvider]:
    """Its containers end with the block."""
    async with DockerProvider.open(docker_host(directory, image)) as provider:
        yield provider
        async for info in provider.list({}):
            await provider.destroy(info.sandbox_id)


@dataclass(frozen=True)
class Wire:
    """Which requests go to a cloud's control plane when a box is looked for, and which to boxd."""

    patience: Patience
    control: Sequence[Mapping[str, str]]
    data: Mapping[str, str]


WIRES: Mapping[str, Wire] = {
    "e2b": Wire(e2b.PATIENCE, [{"path": "^/(v2/)?sandboxes"}], {"path": "^/call$"}),
    "daytona": Wire(daytona.PATIENCE, [{"path": "^/api/"}], {"path": "^/preview/"}),
    "modal": Wire(
        modal.PATIENCE,
        [
            {"rpc": "SandboxWaitV2"},
            {"rpc": "SandboxTagsGetV2"},
            {"rpc": "SandboxCreateConnectTokenV2"},
        ],
        {"path": "/call$"},
    ),
}


class Levers:
    """What can be done to a cloud, and to its boxes behind our back."""

    def __init__(self, http: httpx.AsyncClient, wire: Wire) -> None:
        self._http = http
        self._wire = wire

    async def break_control(self, fault: str) -> None:
        """Every request to the control plane meets it, until `mend`."""
        for match in self._wire.control:
            await self._inject(match, fault)

    async def break_data(self, fault: str) -> None:
        """Every request to boxd meets it, until `mend`."""
        await self._inject(self._wire.data, fault)

    async def _inject(self, match: Mapping[str, str], fault: str) -> None:
        body: dict[str, Any] = {"match": match, "fault": fault, "times": None}
        (await self._http.post("/_emulator/faults", json=body)).raise_for_status()

    async def mend(self) -> int:
        """How often a fault was met."""
        met = (await self._http.get("/_emulator/faults")).json()
        (await self._http.delete("/_emulator/faults")).raise_for_status()
        return sum(fault["hits"] for fault in met)

    async def delete(self, sandbox_id: str) -> None:
        (await self._http.post(f"/_emulator/delete/{sandbox_id}")).raise_for_status()

    async def end_lease(self, sandbox_id: str) -> None:
        (await self._http.post(f"/_emulator/expire/{sandbox_id}")).raise_for_status()
