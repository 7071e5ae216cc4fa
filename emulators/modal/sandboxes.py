"""The sandboxes of the emulated workspace: names, tags, lifetimes, how they end, and what runs in
them. What was begun goes on when who asked for it is cut off, as on the real control plane."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from emulators.boxes import Box, BoxError, Boxes
from emulators.modal.execs import Command, Exec
from emulators.modal.work import Work

Result = api_pb2.GenericResult
TERMINATED, TIMED_OUT = 137, 124


@dataclass
class Sandbox:
    """One sandbox, living or ended."""

    id: str
    app_id: str
    definition: api_pb2.Sandbox
    tags: dict[str, str]
    env: Mapping[str, str]
    created_at: float
    made: asyncio.Task[Box]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    result: api_pb2.GenericResult | None = None
    ending: bool = False
    main: Exec | None = None
    execs: dict[str, asyncio.Task[Exec]] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        # what a V2 sandbox's task is called: the SDK tells them apart by the last letter
        return f"ta-{self.id.removeprefix('sb-')}V"

    @property
    def metadata(self) -> api_pb2.SandboxHandleMetadata:
        return api_pb2.SandboxHandleMetadata(app_id=self.app_id, result=self.result)

    async def box(self) -> Box:
        """Its box, when it is there. Raises: GRPCError."""
        if not self.ending:
            with contextlib.suppress(BoxError):
                return await asyncio.shield(self.made)
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {self.id} has already shut down")


class Sandboxes:
    def __init__(self, boxes: Boxes, work: Work) -> None:
        self._boxes = boxes
        self._work = work
        self._all: dict[str, Sandbox] = {}
        self._lifetimes: dict[str, asyncio.Task[None]] = {}

    def create(self, request: api_pb2.SandboxCreateV2Request, env: Mapping[str, str]) -> Sandbox:
        """At once, as the real one; its box comes later. Raises: GRPCError."""
        definition = request.definition
        if definition.name and self.named(request.app_id, definition.name):
            raise GRPCError(
                Status.ALREADY_EXISTS, f"Sandbox with name {definition.name} already exists"
            )
        # Any length but 22: what looks like the id of a V1 sandbox is taken for one.
        sandbox_id = f"sb-{secrets.token_hex(13)}"
        sandbox = Sandbox(
            id=sandbox_id,
            app_id=request.app_id,
            definition=definition,
            tags={tag.tag_name: tag.tag_value for tag in request.tags},
            env=env,
            created_at=time.time(),
            made=self._work.begin(self._boxes.create(f"modal-{sandbox_id}", env)),
        )
        self._all[sandbox.id] = sandbox
        self._lifetimes[sandbox.id] = self._work.begin(self._life(sandbox))
        return sandbox

    def find(self, sandbox_id: str) -> Sandbox:
        """Living or ended. Raises: GRPCError."""
        try:
            return self._all[sandbox_id]
        except KeyError:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found") from None

    def of_task(self, task_id: str) -> Sandbox:
        """Raises: GRPCError."""
        for sandbox in self._all.values():
            if sandbox.task_id == task_id:
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"Task {task_id} not found")

    def id_of_task(self, task_id: str) -> str:
        """Nothing, when there is no such task."""
        found = (each.id for each in self._all.values() if each.task_id == task_id)
        return next(found, "")

    def of_living_task(self, task_id: str) -> Sandbox:
        """Raises: GRPCError."""
        sandbox = self.of_task(task_id)
        if sandbox.ending:
            raise GRPCError(Status.NOT_FOUND, f"Task {task_id} has ended")
        return sandbox

    def named(self, app_id: str, name: str, *, ended: bool = False) -> Sandbox | None:
        """A name belongs to one living sandbox of an app; the last one counts among ended ones."""
        for sandbox in reversed(self._all.values()):
            if (sandbox.app_id, sandbox.definition.name) == (app_id, name) and (
                ended or not sandbox.ending
            ):
                return sandbox
        return None

    def living(self, app_id: str, tags: Mapping[str, str]) -> list[Sandbox]:
        """The newest first."""
        return [
            sandbox
            for sandbox in reversed(self._all.values())
            if not sandbox.ending
            and sandbox.app_id == app_id
            and tags.items() <= sandbox.tags.items()
        ]

    async def end(
        self,
        sandbox: Sandbox,
        status: api_pb2.GenericResult.GenericStatus.ValueType,
        exit_code: int,
    ) -> None:
        """Returns when it has ended, by whoever was first."""
        if not sandbox.ending:
            sandbox.ending = True
            self._work.begin(self._ended(sandbox, Result(status=status, exitcode=exit_code)))
        await sandbox.ended.wait()

    async def expire(self, sandbox: str) -> bool:
        """Its lifetime is over."""
        if sandbox not in self._all:
            return False
        await self.end(self._all[sandbox], Result.GENERIC_STATUS_TIMEOUT, TIMED_OUT)
        return True

    async def delete(self, sandbox: str) -> bool:
        """It is gone, and nobody remembers it."""
        if sandbox not in self._all:
            return False
        await self.end(self._all[sandbox], Result.GENERIC_STATUS_TERMINATED, TERMINATED)
        del self._all[sandbox]
        return True

    async def exec(
        self, sandbox: Sandbox, exec_id: str, command: Command, *, stdout: bool, stderr: bool
    ) -> None:
        """Idempotent by `exec_id`. Raises: GRPCError."""
        if exec_id not in sandbox.execs:
            sandbox.execs[exec_id] = self._work.begin(self._exec(sandbox, command, stdout, stderr))
        await asyncio.shield(sandbox.execs[exec_id])

    async def running(self, task_id: str, exec_id: str) -> Exec:
        """Raises: GRPCError."""
        sandbox = self.of_living_task(task_id)
        if exec_id not in sandbox.execs:
            raise GRPCError(Status.NOT_FOUND, f"Exec {exec_id} not found")
        return await asyncio.shield(sandbox.execs[exec_id])

    async def _exec(self, sandbox: Sandbox, command: Command, stdout: bool, stderr: bool) -> Exec:
        try:
            started = await Exec.start(await sandbox.box(), command)
        except OSError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, f"cannot start: {error}") from error
        except BoxError as error:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {sandbox.id} is not there") from error
        self._work.begin(started.run(stdout=stdout, stderr=stderr))
        return started

    async def _life(self, sandbox: Sandbox) -> None:
        """Its box, its main process, its end by age."""
        try:
            async with asyncio.timeout(sandbox.definition.timeout_secs or None):
                box = await asyncio.shield(sandbox.made)
                code = await self._main(sandbox, box)
        except TimeoutError:
            await self.end(sandbox, Result.GENERIC_STATUS_TIMEOUT, TIMED_OUT)
        except BoxError as error:
            failed = Result(status=Result.GENERIC_STATUS_INIT_FAILURE, exception=str(error))
            sandbox.ending, sandbox.result = True, failed
            sandbox.ended.set()
        else:
            status = Result.GENERIC_STATUS_FAILURE if code else Result.GENERIC_STATUS_SUCCESS
            await self.end(sandbox, status, code)

    async def _main(self, sandbox: Sandbox, box: Box) -> int:
        """The exit code of its first process. The image's own command, when none is given, is
        taken to run for ever."""
        definition = sandbox.definition
        if not definition.entrypoint_args:
            await asyncio.get_running_loop().create_future()
        command = Command(definition.entrypoint_args, definition.workdir, {})
        try:
            sandbox.main = await Exec.start(box, command)
        except OSError:
            return 127
        code = await sandbox.main.run()
        return 128 - code if code < 0 else code

    async def _ended(self, sandbox: Sandbox, result: api_pb2.GenericResult) -> None:
        life = self._lifetimes.pop(sandbox.id)
        life.cancel()
        with contextlib.suppress(BoxError):
            await (await asyncio.shield(sandbox.made)).destroy()
        sandbox.result = result
        sandbox.ended.set()
