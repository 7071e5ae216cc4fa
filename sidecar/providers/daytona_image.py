"""The snapshot that sandboxes are made of, built by Daytona from sandbox-image/Dockerfile."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from daytona import AsyncDaytona, CreateSnapshotParams, Image
from daytona.common import errors as sdk
from daytona_api_client_async.exceptions import OpenApiException

from contracts.errors import InvalidSpec, Unreachable
from sidecar.providers.cloud import Errors, map_errors
from sidecar.providers.daytona import CREATE_ERRORS, DaytonaAccount, opened

BUILD_SECONDS = 3600
POLL_SECONDS = 1
FAILED = ("error", "build_failed")
# Daytona's daemon is the first process, and runs this as well. Not boxd: the provider starts it,
# with a token.
ENTRYPOINT = ["sleep", "infinity"]
COPIED = re.compile(r"^COPY +(?!.*--from=)(.+)$", re.MULTILINE)
# `activate` lets these through.
BUILD_ERRORS: Errors = (*CREATE_ERRORS, (OpenApiException, Unreachable))


async def build_image(
    account: DaytonaAccount,
    checkout: Path,
    build_args: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """The name of the snapshot, `account.snapshot`, when it can be used. One of that name that is
    there is left alone, and one that another is building is waited for; `say` hears of a build.

    Raises: Unauthorized, InvalidSpec, Unreachable.
    """
    with map_errors(BUILD_ERRORS, "build"):
        async with asyncio.timeout(BUILD_SECONDS), opened(account) as client:
            state = await _state(client, account.snapshot)
            if state in FAILED:
                await client.snapshot.delete(account.snapshot)
                state = ""
            if state == "inactive":  # nobody had used it for two weeks
                await client.snapshot.activate(account.snapshot)
            if not state:
                await _build(client, account.snapshot, checkout, build_args or {}, say)
            while (state := await _state(client, account.snapshot)) != "active":
                if state in FAILED:
                    raise InvalidSpec(f"the build of {account.snapshot} failed", op="build")
                await asyncio.sleep(POLL_SECONDS)
    return account.snapshot


async def _state(client: AsyncDaytona, name: str) -> str:
    """Empty when there is none."""
    try:
        return (await client.snapshot.get(name)).state.value
    except sdk.DaytonaNotFoundError:
        return ""


async def _build(
    client: AsyncDaytona,
    name: str,
    checkout: Path,
    build_args: Mapping[str, str],
    say: Callable[[str], None] | None,
) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-daytona-") as place:
        await asyncio.to_thread(stage, checkout, Path(place), build_args)
        image = await asyncio.to_thread(Image.from_dockerfile, Path(place) / "Dockerfile")
        params = CreateSnapshotParams(name=name, image=image, entrypoint=ENTRYPOINT)
        try:
            await client.snapshot.create(params, on_logs=say)
        except sdk.DaytonaConflictError:
            pass  # another one was faster
        except sdk.DaytonaError as error:
            if await _state(client, name) in FAILED:
                raise InvalidSpec(str(error), op="build") from error
            raise


def stage(checkout: Path, place: Path, build_args: Mapping[str, str]) -> None:
    """Lay out what the Dockerfile copies around a copy of it, because the SDK takes a Dockerfile's
    own directory for its context, knows neither build arguments nor patterns that match nothing,
    and would send caches too.

    Raises: InvalidSpec.
    """
    text = (checkout / "sandbox-image" / "Dockerfile").read_text()
    for name, value in build_args.items():
        before = re.compile(rf"^ARG {re.escape(name)}=.*$", re.MULTILINE)
        if not before.search(text):
            raise InvalidSpec(f"the Dockerfile has no argument {name}", op="build")
        after = f"ARG {name}={value}".replace("\\", r"\\")
        text = before.sub(after, text)
    for source in sorted(set(_sources(text))):
        found = sorted(checkout.glob(source.rstrip("/")))
        if not found and "*" in source:
            text = text.replace(f" {source} ", " ")
        elif not found:
            raise InvalidSpec(
                f"{checkout} has no {source}, which its Dockerfile copies", op="build"
            )
        for each in found:
            _copy(each, place / each.relative_to(checkout))
    (place / "Dockerfile").write_text(text)


def _sources(dockerfile: str) -> Iterator[str]:
    for line in COPIED.findall(dockerfile):
        yield from [word for word in line.split() if not word.startswith("--")][:-1]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)
