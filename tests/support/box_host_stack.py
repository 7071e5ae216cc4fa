"""The embedded stack with a box-host of its own, as `python -m
tests.support.box_host_stack`: the sidecar is left without any capability and with another data
directory, as it is in compose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from stack.embedded import services, stack
from stack.embedded.part import Part
from stack.embedded.probes import answers
from stack.embedded.services import Wiring
from stack.settings import load_settings
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.running_stack import RunningStack, let_go
from tests.support.services import process, until_ready

BOX_HOST = "box-host"
OF_THE_HOST = ("BWRAP", "HARNESS_DIR", "NODE", "WEED", "GEESEFS", "FILER")

all_parts = stack.build_parts


def with_a_box_host(wiring: Wiring, only: Collection[str] = stack.ALL_PARTS) -> list[Part]:
    parts = {part.name: part for part in all_parts(wiring, only)}
    sidecar = parts[services.SIDECAR]
    socket = wiring.layout.control / "box-host.sock"
    data = wiring.layout.data / "sidecar"
    data.mkdir(exist_ok=True)
    env = {n: v for n, v in sidecar.env.items() if n.removeprefix("HOLDFAST_") not in OF_THE_HOST}
    env |= {"HOLDFAST_BOXHOST": str(socket), "HOLDFAST_DATA_DIR": str(data)}
    parts[services.SIDECAR] = replace(
        sidecar, argv=(*_powerless(), *sidecar.argv), env=env, needs=(BOX_HOST,)
    )
    host_env = {
        **sidecar.env,
        "HOLDFAST_BOXHOST": str(socket),
        "HOLDFAST_GATEWAY_DIR": str(wiring.layout.gateway_sessions),
    }
    for name in ("HOLDFAST_S3_ACCESS_KEY", "HOLDFAST_S3_SECRET_KEY", "HOLDFAST_SIDECAR_SECRET"):
        del host_env[name]  # it needs none of them

    async def is_ready(_pid: int) -> bool:
        return await answers("http://box-host/healthz", socket=socket)

    host = Part(
        name=BOX_HOST,
        argv=(sys.executable, "-P", "-m", "sidecar.boxhost", "serve"),
        cwd=wiring.layout.data,
        env=host_env,
        is_ready=is_ready,
        cleanup=sidecar.cleanup,
    )
    return [host, *parts.values()]


def _powerless() -> tuple[str, ...]:
    """The same user, but with no capability to be had."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        return ()
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@contextlib.asynccontextmanager
async def running_with_a_box_host(
    home: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[RunningStack]:
    """Such a stack, up for the time of the block."""
    env = {
        **os.environ,
        "HOLDFAST_DATA_DIR": str(home / "data"),
        "HOLDFAST_RUN_DIR": str(home / "run"),
        "HOLDFAST_API_PORT": str(free_port()),
        "HOLDFAST_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        **(settings or {}),
    }
    running = RunningStack(home / "data", env)
    log = home / "supervisor.log"
    with process([sys.executable, "-m", "tests.support.box_host_stack"], log, env) as supervisor:

        async def is_ready() -> bool:
            return running.phase == "ready"

        await until_ready(supervisor, log, is_ready)
        yield running
    left = let_go(home)
    assert not left, f"mounts were left behind: {left}"


if __name__ == "__main__":
    stack.build_parts = with_a_box_host
    asyncio.run(stack.run_stack(load_settings()))
