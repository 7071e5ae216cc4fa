"""Looks after a sandbox while a turn runs: its workspace stays mounted, although the daemon may die
or hang without a word; what is only on its disk gets to the store; and its provider hears that it
is in use."""

from __future__ import annotations

import asyncio
import logging
import time

from contracts.errors import HoldfastError
from sidecar.runs.live import Live
from sidecar.runs.sandboxes import Emit, Sandboxes
from sidecar.workspace.engine import DurableSandbox

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
# Both engines block for up to 30 s while the store is away, and then go on; a daemon that is killed
# for it would take with it what it has not stored.
HANG_SECONDS = 40.0
KEEPALIVE_SECONDS = 60.0


async def watch(sandboxes: Sandboxes, live: Live, sandbox: DurableSandbox, emit: Emit) -> None:
    """For ever: mount anew what is lost, and say so."""
    hangs_since: float | None = None
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            wrong = await sandboxes.mount_trouble(live)
            if not wrong.startswith("hang"):
                hangs_since = None
            elif hangs_since is None:
                hangs_since = time.monotonic()
            patient = hangs_since is not None and time.monotonic() - hangs_since < HANG_SECONDS
            if wrong and not patient:
                await sandboxes.remount(live, sandbox, wrong, emit)
        except HoldfastError as error:
            # It is tried again, and the barrier does not let it pass.
            log.warning("session %s: the mount is not well: %s", live.session_id, error)


async def keep_copying(sandboxes: Sandboxes, live: Live, sandbox: DurableSandbox) -> None:
    """For ever: bring what was written to the store, where no mount does that."""
    seconds = sandboxes.sync_seconds(live)
    while seconds is not None:
        await asyncio.sleep(seconds)
        try:
            await sandbox.workspace.sync()
        except HoldfastError as error:
            log.warning("session %s: not copied, trying again: %s", live.session_id, error)


async def keep_alive(live: Live, sandbox: DurableSandbox) -> None:
    """For ever: a provider that ends what is idle must hear of a turn that is silent for long."""
    while True:
        try:
            await sandbox.keepalive()
        except HoldfastError as error:
            log.warning("session %s: the provider was not told: %s", live.session_id, error)
        await asyncio.sleep(KEEPALIVE_SECONDS)
