"""The embedded stack as a whole: wired, run, and cleared up after a crash."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace

from contracts.errors import HoldfastError
from stack.embedded import postgres, seaweedfs, services
from stack.embedded.credentials import load_credentials
from stack.embedded.files import write_json
from stack.embedded.layout import Layout
from stack.embedded.logs import STACK, Logs, Sink
from stack.embedded.part import Part
from stack.embedded.ports import check_api_port, store_ports
from stack.embedded.processes import end_strays
from stack.embedded.services import Wiring
from stack.embedded.state import StackState, myself, read_state, stack_lock, write_state
from stack.embedded.state_writer import StateWriter
from stack.embedded.supervisor import Supervisor
from stack.install.everything import find_everything
from stack.settings import Settings, inherited_environment

ALL_PARTS = (
    *(postgres.NAME, seaweedfs.NAME, seaweedfs.GATE),
    *(services.GATEWAY, services.SIDECAR, services.API),
)

OnReady = Callable[[StackState], None]


async def run_stack(
    settings: Settings,
    *,
    sink: Sink | None = None,
    on_ready: OnReady | None = None,
    only: Collection[str] = ALL_PARTS,
) -> None:
    """Run the stack, or `only` some parts of it, until SIGINT, SIGTERM or SIGHUP.

    Raises:
        StackBusy: it runs already.
        HoldfastError: it did not come up, or something was left when it stopped.
    """
    layout = Layout.of(settings)
    layout.make()
    with stack_lock(layout):
        logs = Logs(layout.logs, sink, settings.log_format)
        try:
            await _run(settings, layout, logs, on_ready or _nobody_waits, only)
        finally:
            logs.close()


async def clear_leftovers(settings: Settings) -> list[str]:
    """End the parts, boxes and mounts of a supervisor that died; the names of the parts.

    Raises:
        StackBusy: the stack runs.
        HoldfastError: something cannot be ended.
    """
    layout = Layout.of(settings)
    layout.make()
    with stack_lock(layout):
        found = await end_strays(layout.pids)
        await services.stop_boxes(_wire(settings, layout, after_crash=True))()
        return found


def build_parts(wiring: Wiring, only: Collection[str] = ALL_PARTS) -> list[Part]:
    """The parts in the order of their start."""
    layout, installed = wiring.layout, wiring.installed
    buckets = (wiring.settings.s3_bucket, seaweedfs.STATE_BUCKET)
    gate = seaweedfs.store_gate_part(
        layout, installed.weed, wiring.ports, wiring.settings, inherited_environment()
    )
    parts = [
        postgres.postgres_part(
            layout, installed.postgres, wiring.settings.cache_root, inherited_environment()
        ),
        seaweedfs.seaweedfs_part(
            layout,
            installed.weed,
            wiring.ports,
            wiring.credentials,
            buckets,
            inherited_environment(),
        ),
        *([gate] if gate is not None else []),
        services.gateway_part(wiring),
        services.sidecar_part(wiring),
        services.api_part(wiring),
    ]
    return [_without_others(part, only) for part in parts if part.name in only]


def _without_others(part: Part, only: Collection[str]) -> Part:
    return replace(
        part,
        needs=tuple(name for name in part.needs if name in only),
        uses=tuple(name for name in part.uses if name in only),
    )


async def _run(
    settings: Settings, layout: Layout, logs: Logs, on_ready: OnReady, only: Collection[str]
) -> None:
    previous = read_state(layout)
    state = StackState(
        supervisor=myself(),
        url=settings.url,
        engine="",
        engine_why="",
        ports={},
        started_at=time.time(),
    )
    write_state(layout, state)
    try:
        for name in await end_strays(layout.pids):
            logs.write(STACK, f"{name}: ended what a supervisor that died had left")
        if services.API in only:
            check_api_port(settings)
        stopped_well = previous is not None and previous.phase == "stopped"
        wiring = _wire(settings, layout, after_crash=not stopped_well)
        _publish(wiring)
        state.engine, state.engine_why = wiring.installed.engine(settings.workspace)
        state.ports = {"api": settings.api_port, **asdict(wiring.ports)}
        logs.write(STACK, f"workspaces by {state.engine}: {state.engine_why}")
        await _supervise(build_parts(wiring, only), layout, logs, state, on_ready)
    except HoldfastError as error:
        state.phase, state.error = "failed", error.body()
        raise
    else:
        # without a sidecar, boxes that a crash had left were not looked for
        cleared = services.SIDECAR in only or stopped_well
        state.phase = "stopped" if cleared else "failed"
        layout.remove_sockets()
    finally:
        write_state(layout, state)


async def _supervise(
    parts: list[Part], layout: Layout, logs: Logs, state: StackState, on_ready: OnReady
) -> None:
    def changed() -> None:
        state.parts = supervisor.states
        if supervisor.stopping.is_set():
            state.phase = "stopping"
        elif state.phase == "starting" and supervisor.all_ready.is_set():
            state.phase, state.ready_after = "ready", supervisor.elapsed()
            supervisor.say(f"ready after {state.ready_after:.1f} s: {state.url}")
            on_ready(state)
        writer.write()

    writer = StateWriter(layout, state)
    supervisor = Supervisor(parts, pids=layout.pids, logs=logs, on_change=changed)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, supervisor.stop)
    writing = asyncio.create_task(writer.keep_trying())
    try:
        await supervisor.run()
    finally:
        writing.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


def _nobody_waits(_state: StackState) -> None:
    """For a stack whose state file is watched instead."""


def _wire(settings: Settings, layout: Layout, *, after_crash: bool) -> Wiring:
    return Wiring(
        settings,
        layout,
        find_everything(settings),
        load_credentials(layout, settings),
        store_ports(layout.ports),
        after_crash,
    )


def _publish(wiring: Wiring) -> None:
    """Tell other programs of this user where the api and the store are."""
    layout, credentials = wiring.layout, wiring.credentials
    write_json(layout.api, {"url": wiring.settings.url})
    store = {
        "endpoint": seaweedfs.s3_endpoint(wiring.ports),
        "access_key": credentials.s3_access_key.get_secret_value(),
        "secret_key": credentials.s3_secret_key.get_secret_value(),
        "bucket": wiring.settings.s3_bucket,
    }
    write_json(layout.store, store)
