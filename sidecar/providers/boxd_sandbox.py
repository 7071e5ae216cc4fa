"""A sandbox whose inside is reached through boxd, whichever way leads there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from contracts.errors import FileMissing, SandboxGone, Unreachable, Unsupported
from sidecar.providers.base import (
    Command,
    ExecResult,
    SandboxProcess,
    Status,
)
from sidecar.providers.boxd import Link, NoAnswer
from sidecar.providers.boxd_answers import MOST_PACKED_BYTES, Refused
from sidecar.providers.boxd_files import BoxdFiles

EXEC_GRACE_SECONDS = 30
FREEZE_SECONDS = 75
MOUNT_SECONDS = 60


class Control(Protocol):
    """What a sandbox asks of its provider's control plane."""

    async def status(self, sandbox_id: str) -> Status: ...

    async def keepalive(self, sandbox_id: str) -> None:
        """Say that it is in use. Raises: SandboxGone, Unreachable."""
        ...


class BoxdSandbox:
    """All of a Sandbox but for its endpoints and its way to the gateway, and of an InBoxSandbox."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        boxd: Link,
        control: Control,
        exec_grace: float = EXEC_GRACE_SECONDS,
    ) -> None:
        """`exec_grace` is how many seconds boxd has to tell that a command's time is over."""
        self.id = sandbox_id
        self.labels = labels
        self._boxd = boxd
        self._control = control
        self._exec_grace = exec_grace

    async def exec(self, command: Command) -> ExecResult:
        bound = None if command.timeout is None else command.timeout + self._exec_grace
        with asked("exec"):
            head, output = await self._boxd.call(
                "exec",
                command.stdin,
                bound=bound,
                argv=list(command.argv),
                cwd=command.cwd,
                env=dict(command.env),
                timeout=command.timeout,
            )
        split = head["stdout"]
        return ExecResult(head["exit_code"], output[:split], output[split:])

    async def spawn(self, command: Command) -> None:
        with asked("spawn"):
            await self._boxd.call(
                "spawn", argv=list(command.argv), cwd=command.cwd, env=dict(command.env)
            )

    async def read(self, path: str) -> bytes:
        with asked("read"):
            _, data = await self._boxd.call("read", path=path)
        return data

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        with asked("write"):
            await self._boxd.call("write", data, path=path, mode=mode)

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        with asked("pack"):
            _, tar = await self._boxd.call(
                "pack", kept=list(kept), left=list(left), most_bytes=MOST_PACKED_BYTES
            )
        return tar

    async def unpack(self, tar: bytes) -> None:
        with asked("unpack"):
            await self._boxd.call("unpack", tar)

    async def processes(self) -> list[SandboxProcess]:
        with asked("processes"):
            head, _ = await self._boxd.call("processes")
        return [
            SandboxProcess(
                each["token"],
                each["pid"],
                tuple(each["argv"]) or ("", ""),
                each.get("memory", 0),
            )
            for each in head["processes"]
        ]

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        with asked("kill"):
            await self._boxd.call("kill", tokens=[process.token for process in processes])

    async def held(self) -> set[int]:
        try:
            with asked("held"):
                head, _ = await self._boxd.call("held")
            return set(head["inodes"])
        except Unreachable:
            if await self._control.status(self.id) is Status.GONE:
                return set()
            raise

    async def freeze(self) -> None:
        try:
            with asked("freeze"):
                await self._boxd.freeze(FREEZE_SECONDS)
        except Unreachable as error:
            if await self._control.status(self.id) is Status.GONE:
                raise SandboxGone(f"the sandbox {self.id} is gone", op="freeze") from error
            raise

    async def thaw(self) -> None:
        try:
            with asked("thaw"):
                await self._boxd.thaw()
        except Unreachable:
            if await self._control.status(self.id) is not Status.GONE:
                raise

    async def keepalive(self) -> None:
        await self._control.keepalive(self.id)

    files_owner = None  # boxd is the agent's own user

    def files(self) -> BoxdFiles:
        return BoxdFiles(self._boxd)

    async def mount(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        with asked("mount"):
            await self._boxd.call("mount", bound=MOUNT_SECONDS, argv=list(argv), env=dict(env))

    async def unmount(self, *, gently: bool) -> None:
        with asked("unmount"):
            await self._boxd.call("unmount", bound=MOUNT_SECONDS, gently=gently)

    async def mounted(self) -> bool:
        with asked("mounted"):
            head, _ = await self._boxd.call("mounted")
        return bool(head["mounted"] and head["alive"])


@contextlib.contextmanager
def asked(op: str) -> Iterator[None]:
    """boxd's errors as ours."""
    try:
        yield
    except NoAnswer as error:
        raise Unreachable(str(error), op=op) from error
    except Refused as refused:
        if refused.kind == "missing" and op == "read":
            raise FileMissing(str(refused), op=op) from refused
        if refused.kind == "large":
            raise Unsupported(str(refused), op=op) from refused
        raise Unreachable(str(refused), op=op) from refused
