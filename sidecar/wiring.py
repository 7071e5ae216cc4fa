"""Every provider of this sidecar, with a durable workspace: made from the settings, once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import SecretStr

from sidecar.boxhost.contract import Host
from sidecar.providers import registry
from sidecar.providers.base import Provider
from sidecar.providers.cloud import Cloud
from sidecar.providers.docker import DockerHost, DockerProvider
from sidecar.providers.local import LocalProvider
from sidecar.providers.missing import MissingProvider
from sidecar.runs.sandboxes import Providers
from sidecar.settings import Settings
from sidecar.workspace.checkpoint import Checkpoint, with_checkpoint
from sidecar.workspace.choice import choose
from sidecar.workspace.engine import Durable
from sidecar.workspace.geesefs import GeesefsInBox, with_geesefs
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.in_box import InBox, Parts
from sidecar.workspace.weed import with_weed

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def providers(
    settings: Settings, host: Host, parts: Parts, keys: SessionKeys
) -> AsyncIterator[Providers]:
    """By name, in the registry's order."""
    async with contextlib.AsyncExitStack() as stack:
        here: list[Provider] = [
            LocalProvider(host.boxes),
            await stack.enter_async_context(DockerProvider.open(await docker_host(settings, host))),
        ]
        away = await clouds(settings, await host.mounts.name(), stack)
        found = {provider.name: _here(settings, provider, host, parts, keys) for provider in here}
        found |= {provider.name: _away(settings, provider, parts) for provider in away}
        copied = {
            provider.name: _copied(settings, provider, parts, "the turn asks for it")
            for provider in (*here, *away)
        }
        for durable in (*found.values(), *copied.values()):
            if isinstance(durable, InBox):
                stack.push_async_callback(durable.aclose)
        for name, durable in found.items():
            log.info("%s: workspaces by %s (%s)", name, durable.choice.name, durable.choice.why)
        yield Providers({name: found[name] for name in registry.ROWS}, copied)


def _copied(settings: Settings, provider: Provider, parts: Parts, why: str) -> Durable:
    return with_checkpoint(provider, parts, settings.checkpoint_seconds, why)


def _here(
    settings: Settings, provider: Provider, host: Host, parts: Parts, keys: SessionKeys
) -> Durable:
    """A provider whose sandboxes see the mounts of our host."""
    choice = choose(settings.workspace, host.geesefs)
    if choice.name == "checkpoint":
        return _copied(settings, provider, parts, choice.why)
    wrap = with_geesefs if choice.name == "geesefs" else with_weed
    return wrap(provider, host.mounts, parts.store, parts.manifests, keys, choice.why)


def _away(settings: Settings, provider: Provider, parts: Parts) -> Durable:
    """A provider whose sandboxes are elsewhere."""
    if settings.workspace == "checkpoint":
        why = "HOLDFAST_WORKSPACE=checkpoint"
        return _copied(settings, provider, parts, why)
    if provider.capabilities.mount != "in_box":
        why = f"nothing can be mounted inside a sandbox of {provider.name}"
        return _copied(settings, provider, parts, why)
    if not settings.store_url:
        why = "the store has no address that a cloud could reach (HOLDFAST_STORE_URL)"
        return _copied(settings, provider, parts, why)
    mounted = GeesefsInBox(settings.store_url, parts.address.bucket)
    copied = Checkpoint(parts.address, settings.checkpoint_seconds)
    why = "mounted inside, by HOLDFAST_STORE_URL"
    return InBox(provider, [mounted, copied], parts, why)


async def clouds(
    settings: Settings, stack_name: str, stack: contextlib.AsyncExitStack
) -> list[Provider]:
    """The clouds' providers; one whose key is not set, or whose SDK is not installed, says so."""
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


def _secret(value: SecretStr | None) -> str:
    return "" if value is None else value.get_secret_value()


def _derived(secret: SecretStr, purpose: str) -> bytes:
    return hashlib.sha256(f"{purpose} {secret.get_secret_value()}".encode()).digest()


async def docker_host(settings: Settings, host: Host) -> DockerHost:
    """Where the docker provider makes its containers."""
    return DockerHost(
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
