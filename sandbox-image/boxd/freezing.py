"""Stops every process of the sandbox, and lets them go on.

SIGSTOP reaches a process, not the child that it forks meanwhile: a chain of forks gets ahead of any
list. So a freeze counts only when it is proven: two looks in a row see the same processes, all of
them stopped, and from before the first until after the second no process was born in this PID
namespace. Two looks, because a fork has taken its pid before its child can be seen: the second one
sees what was on its way during the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Mapping
from typing import NamedTuple

import living
from asked import Refused
from threads import Threads

STOP_SECONDS = 60
POLL_SECONDS = 0.005
# After that many rounds that stop one process after the other, one that stops all at once.
ROUNDS_IN_ORDER = 4


class Look(NamedTuple):
    """`quiet`: everybody is stopped, and nobody was born meanwhile."""

    found: list[living.Running]
    helpers: list[living.Running]
    quiet: bool


class Holder:
    """Who wants everything to stand still. The last one to let go lets the processes go on."""


class Freezer:
    def __init__(self) -> None:
        # Its own: a freeze must not wait for calls that hang.
        self._threads = Threads("freezer", kept=1, most=1)
        self._freezing = asyncio.Lock()
        self._holders: set[Holder] = set()
        # Whom we have stopped, in that order; and whom somebody else had, who must stay so.
        self._ours: dict[str, int] = {}
        self._theirs: set[str] = set()
        self._stopped_groups = False
        self._proven = False
        self._stuck: set[str] = set()

    async def freeze(self, holder: Holder) -> None:
        """Every process is stopped when this returns. Raises: Refused, when that cannot be proven.
        Whether it raises or not, the caller must thaw."""
        self._holders.add(holder)
        deadline = time.monotonic() + STOP_SECONDS
        async with self._freezing:
            self._proven = False
            for turn in itertools.count(1):
                look = await self._threads.run(_look_twice, STOP_SECONDS)
                if holder not in self._holders:
                    raise Refused("it was thawed while it was being frozen")
                self._note(look)
                if look.quiet:
                    self._proven = True
                    return
                if time.monotonic() > deadline:
                    awake = [each.pid for each in look.found if not each.stopped]
                    raise Refused(f"not frozen: processes {awake[:5] or 'multiply'}")
                if turn % (ROUNDS_IN_ORDER + 1):
                    self._stop_in_order(look.found)
                else:
                    self._stop_at_once(look)
                await asyncio.sleep(POLL_SECONDS)

    def thaw(self, holder: Holder) -> None:
        """Let them go on, unless somebody else holds them. Idempotent; waits for nothing."""
        self._holders.discard(holder)
        if self._holders:
            return
        # Children first: a parent never sees that they were stopped.
        for token in reversed(self._ours):
            _continue(token)
        if self._stopped_groups and not self._proven:
            for each in living.scan()[0]:
                if each.stopped and each.token not in self._theirs:
                    _continue(each.token)
        self._ours, self._theirs = {}, set()
        self._stopped_groups = False

    def _note(self, look: Look) -> None:
        for each in look.found:
            if each.token in self._ours:
                continue
            if not each.stopped:
                self._theirs.discard(each.token)
            elif not self._stopped_groups:
                self._theirs.add(each.token)
            elif each.token not in self._theirs:
                self._ours[each.token] = (
                    each.pid
                )  # born too late for our list, stopped all the same
        for helper in look.helpers:
            if helper.stopped:
                _continue(helper.token)

    def _stop_in_order(self, found: list[living.Running]) -> None:
        """A parent has stopped before its children are told to, and never sees them stopped; a
        vforked child gets to the exec that its parent waits for."""
        awake = {each.pid: each for each in found if not each.stopped}
        for each in found:
            if each.pid in awake and each.parent not in awake:
                self._ours.setdefault(each.token, each.pid)
                _signal(each.pid, signal.SIGSTOP)
        self._let_vforked_go_on(found, awake)

    def _let_vforked_go_on(
        self, found: list[living.Running], awake: Mapping[int, living.Running]
    ) -> None:
        """To their exec, when all others have stopped but the parents that wait for it."""
        before, self._stuck = self._stuck, {each.token for each in awake.values()}
        if self._stuck == before and all(each.state == "D" for each in awake.values()):
            for each in found:
                if each.stopped and each.parent in awake and each.token in self._ours:
                    _signal(each.pid, signal.SIGCONT)

    def _stop_at_once(self, look: Look) -> None:
        """The kernel lets nobody fork out of a group that it signals. As the first process of the
        namespace we may signal all of it. Elsewhere that would stop the provider's processes, which
        are never in a group with ours: what boxd starts gets a session of its own."""
        self._stopped_groups = True
        if os.getpid() == 1:
            _signal(-1, signal.SIGSTOP)
            for helper in look.helpers:
                _signal(helper.pid, signal.SIGCONT)
            return
        for group in {each.group for each in look.found if not each.stopped}:
            if group > 1 and group != os.getpgrp():
                _signal(-group, signal.SIGSTOP)


def _look_twice() -> Look:
    last = _last_pid()
    found, helpers = living.scan()
    if not all(each.stopped for each in found):
        return Look(found, helpers, quiet=False)
    again, helpers = living.scan()
    same = {each.token for each in found} == {each.token for each in again}
    stopped = all(each.stopped for each in again)
    return Look(again, helpers, quiet=same and stopped and _last_pid() == last)


def _last_pid() -> str:
    """Of our PID namespace and of those within it."""
    with open("/proc/loadavg", encoding="ascii") as file:  # noqa: PTH123
        return file.read().split()[4]


def _continue(token: str) -> None:
    pid = int(token.partition(":")[0])
    if living.token_of(pid) == token:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: int) -> None:
    # One that we may not signal, a setuid program, is seen to be awake by every look.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
