"""`python -m sidecar.doctor NAME [--box] [--json]`: a cloud, step by step, as the sidecar sees it.

Each step is ok, or says what to do; one that cannot be tried without the one before it is left out.
`--box` makes a sandbox, which is billed, and ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from contracts.errors import HoldfastError, SandboxError, Unauthorized
from contracts.secret_files import secret_files
from sidecar.account_settings import AccountSettings
from sidecar.box_host import box_host
from sidecar.exiting import exit_process
from sidecar.providers import registry
from sidecar.providers.base import Provider
from sidecar.providers.cloud import Cloud
from sidecar.settings import Settings
from sidecar.vendors import ACCOUNTS

Level = Literal["ok", "warn", "fail"]

ASK_SECONDS = 15
# A sandbox that is older was left by a doctor that was killed.
BOX_SECONDS = 600
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OK, UNAUTHORIZED, FORBIDDEN = 200, 401, 403
NAMES = tuple(row.name for row in registry.ROWS.values() if row.module is not None)
TUNNEL = "is the stack up, and a tunnel that leads here? docs/clouds.md"
IN_COMPOSE = "is there a way out? In compose: HOLDFAST_SIDECAR_CLOSED=false"


@dataclass(frozen=True)
class Step:
    check: str
    level: Level
    found: str
    advice: str = ""


async def examine(name: str, settings: Settings, *, box: bool) -> AsyncGenerator[Step, None]:
    """The steps, each as it is done."""
    ready = True
    async with contextlib.AsyncExitStack() as stack:
        provider: Provider | None = None
        async for step, opened in _account(name, settings, stack, box=box):
            yield step
            ready = ready and step.level != "fail"
            provider = opened or provider
        for step in (await _gateway(settings), await _store(settings)):
            yield step
            ready = ready and step.level != "fail"
        if not box:
            return
        if provider is None or not ready:
            yield Step("a sandbox", "warn", "not tried", "do what is said above first")
            return
        # here, because it brings the store's client with it
        from sidecar.doctor_box import try_box

        async with contextlib.aclosing(try_box(settings, provider, BOX_SECONDS)) as steps:
            async for check, level, found, advice in steps:
                yield Step(check, level, found, advice)


async def _account(
    name: str, settings: Settings, stack: contextlib.AsyncExitStack, *, box: bool
) -> AsyncIterator[tuple[Step, Provider | None]]:
    """SDK, key, control plane, image; the provider as soon as there is one."""
    row, account = registry.check(name), ACCOUNTS[name]
    assert row.module is not None
    try:
        module = importlib.import_module(row.module)
    except ImportError as error:
        yield Step("SDK", "fail", str(error), row.install_hint), None
        return
    yield Step("SDK", "ok", f"{name} is installed"), None
    if not account.has_key(settings):
        yield Step("key", "fail", "there is none", f"set {account.needs} in .env"), None
        return
    yield Step("key", "ok", f"{account.needs} given"), None
    provider = await _opened(settings, module, name, stack, box=box)
    accepted = await _accepted(row.title, provider)
    yield accepted, provider
    if accepted.level == "ok":
        yield await _image(name, provider), provider


async def _opened(
    settings: Settings,
    module: ModuleType,
    name: str,
    stack: contextlib.AsyncExitStack,
    *,
    box: bool,
) -> Provider:
    """A provider whose sandboxes are not the stack's, which ends any that its ledger knows not."""
    owner = settings.docker_stack or ""
    if box and not owner:
        async with box_host(settings) as host:
            owner = await host.mounts.name()
    known = settings.gateway_secret
    cloud = Cloud(
        stack=f"doctor-{owner}",
        gateway_url=settings.gateway_url,
        secret=secrets.token_bytes(32),
        gateway_secret=b"" if known is None else known.get_secret_value().encode(),
        lifetime=BOX_SECONDS,
    )
    made = ACCOUNTS[name].made(settings, module)
    if name == "modal":
        made = replace(made, lifetime=BOX_SECONDS)  # which is not the cloud's there
    opened: Any = getattr(module, registry.ROWS[name].class_name).open(cloud, made)
    provider: Provider = await stack.enter_async_context(opened)
    return provider


async def _accepted(title: str, provider: Provider) -> Step:
    """Whether the control plane answers to the key: by listing, which changes nothing."""
    check = "control plane"
    try:
        async for _ in provider.list({}):
            pass
    except Unauthorized as error:
        return Step(check, "fail", f"{title} refuses the key: {error.message}", "make a new one")
    except SandboxError as error:
        return Step(check, "fail", f"{title} does not answer: {error.message}", IN_COMPOSE)
    return Step(check, "ok", f"{title} takes the key")


async def _image(name: str, provider: Provider) -> Step:
    trouble = await provider.trouble()
    if trouble:
        return Step("image", "fail", trouble, f"`holdfast images build {name}` makes it")
    if name == "modal":
        return Step("image", "ok", "named; whether Modal has it, only --box tells")
    return Step("image", "ok", "there")


async def _gateway(settings: Settings) -> Step:
    """It must be reachable, and let nobody in who has no session's token."""
    check, url = "model gateway", settings.gateway_url
    if not url:
        advice = "give it a port and a tunnel, and set HOLDFAST_GATEWAY_URL: docs/clouds.md"
        return Step(check, "fail", "HOLDFAST_GATEWAY_URL is not set", advice)
    status, said = await _ask(f"{url.rstrip('/')}/", {"Authorization": "Bearer no.session"})
    if status == UNAUTHORIZED and "session" in said:
        return _open_to_view(check, url, f"{url} answers, and refuses a token that is no session's")
    if status == 0:
        return Step(check, "fail", f"{url} does not answer: {said}", TUNNEL)
    advice = "something else answers there: a tunnel's own page, or another service"
    return Step(check, "fail", f"{url} answers {status} where 401 is due", advice)


async def _store(settings: Settings) -> Step:
    check, url = "store", settings.store_url
    copied = f"workspaces are copied; a sudden end costs up to {settings.checkpoint_seconds:g} s"
    if settings.workspace == "checkpoint":
        return Step(check, "ok", f"HOLDFAST_WORKSPACE=checkpoint: {copied}")
    if not url:
        return Step(check, "ok", f"HOLDFAST_STORE_URL is not set: {copied}")
    status, said = await _ask(f"{url.rstrip('/')}/{settings.s3_bucket}?list-type=2", {})
    if status == FORBIDDEN:
        return _open_to_view(check, url, f"{url} answers, and refuses who has no key")
    if status == OK:
        return Step(check, "fail", f"{url} lists files to anyone", "take the tunnel down")
    if status == 0:
        return Step(check, "fail", f"{url} does not answer: {said}", TUNNEL)
    advice = "something else answers there: a tunnel's own page, or another service"
    return Step(check, "fail", f"{url} answers {status} where 403 is due", advice)


def _open_to_view(check: str, url: str, found: str) -> Step:
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname in LOOPBACK:
        return Step(check, "ok", found)
    return Step(check, "warn", found, "not by https: what passes can be read on the way")


async def _ask(url: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and the beginning of the body; 0 and the reason where there is no answer."""
    timeout = aiohttp.ClientTimeout(ASK_SECONDS)
    # through a proxy, where this machine has one for the way out
    outside = urlsplit(url).hostname not in LOOPBACK
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=outside) as http,
            http.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            return answer.status, (await answer.content.read(2000)).decode("utf-8", "replace")
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return 0, str(error) or type(error).__name__


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sidecar.doctor", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--box", action="store_true", help="make a sandbox, and end it")
    parser.add_argument("--json", action="store_true", help="one object per line")
    given = parser.parse_args()
    try:
        return asyncio.run(_told(given.name, box=given.box, as_json=given.json))
    except KeyboardInterrupt:
        return 130


async def _told(name: str, *, box: bool, as_json: bool) -> int:
    """Says every step; the exit code. SIGTERM is heard as Ctrl-C is: a sandbox has to be ended."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    kind = Settings if box else AccountSettings
    code = 0
    try:
        settings = kind(_secrets_dir=secret_files())
        async with contextlib.aclosing(examine(name, settings, box=box)) as steps:
            async for step in steps:
                code = 1 if step.level == "fail" else code
                _say(step, as_json=as_json)
    except (HoldfastError, ValueError) as error:
        message = error.message if isinstance(error, HoldfastError) else str(error)
        _say(Step("doctor", "fail", message, getattr(error, "hint", "")), as_json=as_json)
        return 1
    return code


def _say(step: Step, *, as_json: bool) -> None:
    advice = f"\n      → {step.advice}" if step.advice else ""
    text = f"{step.level:<5} {step.check}: {step.found}{advice}"
    sys.stdout.write((json.dumps(asdict(step)) if as_json else text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    exit_process(main())
