"""Providers as their vendors have them, without a durable workspace: made from the settings.

The modules that speak to a vendor are imported when one is made: `sidecar.stop_all` makes none on
most machines, and their HTTP clients take longer to import than it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import SecretStr

from sidecar.boxhost.contract import Host
from sidecar.providers import registry
from sidecar.providers.base import Provider
from sidecar.providers.missing import MissingProvider
from sidecar.settings import Settings


async def clouds(
    settings: Settings, stack_name: str, stack: contextlib.AsyncExitStack
) -> list[Provider]:
    """The clouds' providers; one whose key is not set, or whose SDK is not installed, says so."""
    from sidecar.providers.cloud import Cloud

    cloud = Cloud(
        stack=settings.docker_stack or stack_name,
        gateway_url=settings.gateway_url,
        secret=_derived(settings.sidecar_secret, "boxd"),
        gateway_secret=(settings.gateway_secret or SecretStr("")).get_secret_value().encode(),
        lifetime=settings.cloud_lifetime,
    )
    found: list[Provider] = []
    for row in registry.ROWS.values():
        if row.module is None:
            continue
        account = ACCOUNTS[row.name]
        if not account.has_key(settings):
            found.append(MissingProvider(row.name, f"set {account.needs} in .env"))
            continue
        try:
            # In a thread: an SDK takes seconds to import, and there may be several.
            module = await asyncio.to_thread(importlib.import_module, row.module)
        except ImportError as error:
            found.append(MissingProvider(row.name, f"{error}; {row.install_hint}"))
            continue
        opened = getattr(module, row.class_name).open(cloud, account.made(settings, module))
        found.append(await stack.enter_async_context(opened))
    return found


def _e2b(settings: Settings, module: ModuleType) -> Any:
    return module.E2BAccount(
        api_key=_secret(settings.e2b_api_key),
        template=settings.e2b_template,
        api_url=settings.e2b_api_url,
        sandbox_url=settings.e2b_sandbox_url,
    )


def _daytona(settings: Settings, module: ModuleType) -> Any:
    return module.DaytonaAccount(
        api_key=_secret(settings.daytona_api_key),
        snapshot=settings.daytona_snapshot,
        api_url=settings.daytona_api_url,
        target=settings.daytona_target,
    )


def _modal(settings: Settings, module: ModuleType) -> Any:
    return module.ModalAccount(
        token_id=_secret(settings.modal_token_id),
        token_secret=_secret(settings.modal_token_secret),
        app=settings.modal_app,
        image=settings.modal_image,
        runtime=settings.modal_runtime,
        server_url=settings.modal_server_url,
    )


@dataclass(frozen=True)
class Account:
    """How a cloud's account is made from the settings."""

    needs: str
    has_key: Callable[[Settings], bool]
    made: Callable[[Settings, ModuleType], Any]


ACCOUNTS: Mapping[str, Account] = {
    "e2b": Account("E2B_API_KEY", lambda s: s.e2b_api_key is not None, _e2b),
    "daytona": Account("DAYTONA_API_KEY", lambda s: s.daytona_api_key is not None, _daytona),
    "modal": Account(
        "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
        lambda s: s.modal_token_id is not None and s.modal_token_secret is not None,
        _modal,
    ),
}


def has_cloud(settings: Settings) -> bool:
    """Whether any cloud's key is set."""
    return any(account.has_key(settings) for account in ACCOUNTS.values())


def _secret(value: SecretStr | None) -> str:
    return "" if value is None else value.get_secret_value()


def _derived(secret: SecretStr, purpose: str) -> bytes:
    return hashlib.sha256(f"{purpose} {secret.get_secret_value()}".encode()).digest()


async def docker(settings: Settings, host: Host, stack: contextlib.AsyncExitStack) -> Provider:
    """Docker's provider, whether or not an engine is there."""
    from sidecar.providers.docker import DockerHost, DockerProvider

    place = DockerHost(
        socket=settings.docker_socket,
        image=settings.sandbox_image,
        stack=settings.docker_stack or await host.mounts.name(),
        run_dir=settings.run_dir,
        mounts_root=settings.docker_mounts_root or settings.data_dir / "mounts",
        run_root=settings.docker_run_root or settings.run_dir,
        memory=settings.docker_memory,
        cpus=settings.docker_cpus,
        pids=settings.docker_pids,
        proxied=settings.docker_proxied,
    )
    return await stack.enter_async_context(DockerProvider.open(place))
