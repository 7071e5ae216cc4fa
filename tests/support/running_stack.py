"""The embedded stack, started by the real command in a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import aioboto3

from contracts.bodies import Session
from stack.embedded.layout import Layout
from stack.embedded.part import PartState
from stack.embedded.state import StackState, running_state
from stack.settings import Settings, load_settings
from tests.support.ports import free_port

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


@dataclass(frozen=True)
class RunningStack:
    data_dir: Path
    env: dict[str, str]
    holdfast: str = HOLDFAST

    @property
    def url(self) -> str:
        return str(json.loads((self.data_dir / "api.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.data_dir / "token").read_text().strip()

    async def command(
        self, *args: str, check: bool = True, env: Mapping[str, str] | None = None
    ) -> str:
        process = await asyncio.create_subprocess_exec(
            self.holdfast,
            *args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**self.env, **(env or {})},
        )
        output, _ = await process.communicate()
        text = output.decode()
        assert not check or process.returncode == 0, text
        return text

    @property
    def layout(self) -> Layout:
        run_dir = self.env.get("HOLDFAST_RUN_DIR")
        return Layout.of(
            Settings(data_dir=self.data_dir, run_dir=Path(run_dir) if run_dir else None)
        )

    @property
    def state(self) -> StackState | None:
        """What `holdfast status` shows, without the price of a command."""
        return running_state(self.layout)

    @property
    def phase(self) -> str | None:
        state = self.state
        return None if state is None else state.phase

    def part(self, name: str) -> PartState:
        """What the supervisor says of one part."""
        state = self.state
        assert state is not None, f"no stack runs in {self.data_dir}"
        return next(each for each in state.parts if each.name == name)

    def pid_of(self, name: str) -> int:
        pid = self.part(name).pid
        assert pid is not None, f"{name} does not run"
        return pid

    async def stored(self, session: Session, path: str) -> bytes | None:
        """An object as an S3 client of its own sees it."""
        access = json.loads((self.data_dir / "store.json").read_text())
        async with aioboto3.Session().client(
            "s3",
            endpoint_url=access["endpoint"],
            aws_access_key_id=access["access_key"],
            aws_secret_access_key=access["secret_key"],
            region_name="us-east-1",
        ) as s3:
            try:
                answer = await s3.get_object(Bucket=access["bucket"], Key=f"{session.id}/{path}")
            except s3.exceptions.NoSuchKey:
                return None
            return await answer["Body"].read()


@contextlib.asynccontextmanager
async def running_stack(
    data_dir: Path,
    settings: Mapping[str, str] | None = None,
    *,
    holdfast: str = HOLDFAST,
    disks: Collection[Path] = (),
) -> AsyncIterator[RunningStack]:
    """A stack with the scripted model, up for the time of the block; no mount of it is left then,
    save for the `disks` that were there before it.

    Raises: AssertionError when a real model's key is set, or a mount is left.
    """
    loaded = load_settings()
    with_a_key = loaded.anthropic_api_key or loaded.openai_api_key
    assert not with_a_key, "take the keys out of .env and the environment: no test pays a model"
    env = {
        **os.environ,
        "HOLDFAST_DATA_DIR": str(data_dir),
        "HOLDFAST_API_PORT": str(free_port()),
        "HOLDFAST_OFFLINE": "1",
        **(settings or {}),
    }
    running = RunningStack(data_dir, env, holdfast)
    await running.command("up", "--detach")
    try:
        yield running
    finally:
        try:
            if running.phase is not None:  # else the test has stopped it
                await running.command("down")
        finally:
            left = let_go(data_dir, disks)
        assert not left, f"mounts were left behind: {left}"


def let_go(data_dir: Path, disks: Collection[Path] = ()) -> list[str]:
    """Unmount what a stack has left: removing its directory would hang in it, or empty it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    left = [line.split()[4] for line in lines if f"{data_dir}/" in line]
    left = [mountpoint for mountpoint in left if Path(mountpoint) not in disks]
    for mountpoint in reversed(left):
        subprocess.run(["umount", "-l", mountpoint], check=False)
    return left
