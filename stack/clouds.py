"""What the commands about clouds share: which settings are whose, and how a program of a package is
run that this one must not import."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from pydantic import SecretStr

from stack.cloud_names import TITLES as TITLES
from stack.cloud_names import Cloud as Cloud
from stack.settings import Settings, inherited_environment, project_root

# Longer than a cloud takes to end a sandbox, which is what a program may have to do before.
END_SECONDS = 150.0
# A line of a build's log may be longer than asyncio's 64 KiB.
LONGEST_LINE = 1 << 20


ACCOUNTS: Mapping[Cloud, tuple[str, ...]] = {
    Cloud.E2B: ("e2b_api_key", "e2b_api_url", "e2b_sandbox_url", "e2b_template"),
    Cloud.DAYTONA: ("daytona_api_key", "daytona_api_url", "daytona_target", "daytona_snapshot"),
    Cloud.MODAL: (
        *("modal_token_id", "modal_token_secret", "modal_server_url"),
        *("modal_app", "modal_image", "modal_runtime"),
    ),
}


def variable(name: str) -> str:
    """The environment's name of a setting."""
    alias = Settings.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else f"HOLDFAST_{name.upper()}"


def environment(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """These settings as variables, those that were set at all."""
    found = {}
    for name in names:
        value = getattr(settings, name)
        if value is not None:
            secret = isinstance(value, SecretStr)
            found[variable(name)] = value.get_secret_value() if secret else str(value)
    return found


def module(name: str, *arguments: str) -> tuple[str, ...]:
    # -P: the current directory is no place to import from
    return (sys.executable, "-P", "-m", name, *arguments)


@asynccontextmanager
async def running(
    argv: tuple[str, ...], given: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that reaches beyond this machine, with its output to be read. It is told to end
    when the block is left, and waited for: it may have a sandbox to end."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**inherited_environment(network=True), "PYTHONUNBUFFERED": "1", **given},
        cwd=project_root(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        # Ctrl-C is ours to hear: it would else reach both, in whatever order
        start_new_session=True,
    )
    try:
        yield process
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(END_SECONDS):
            # what it still says is read, lest a full pipe keep it
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
