"""Every provider of this sidecar, with a durable workspace: made from the settings, once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from sidecar.boxhost.contract import Host
from sidecar.providers import registry
from sidecar.providers.base import Provider
from sidecar.providers.local import LocalProvider
from sidecar.runs.sandboxes import Providers
from sidecar.settings import Settings
from sidecar.vendors import clouds, docker
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
            await docker(settings, host, stack),
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
