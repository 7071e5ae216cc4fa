"""A provider that cannot be used, because what it is made with is not installed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from contracts.errors import Unreachable
from sidecar.providers.base import Capabilities, Sandbox, SandboxInfo, SandboxSpec, Status


class MissingProvider:
    capabilities = Capabilities(mount="none")

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self._reason = reason

    async def trouble(self) -> str:
        return self._reason

    async def create(self, spec: SandboxSpec) -> Sandbox:
        raise Unreachable(self._reason, op="create")

    async def attach(self, sandbox_id: str) -> Sandbox:
        raise Unreachable(self._reason, op="attach")

    async def status(self, sandbox_id: str) -> Status:
        """A sandbox of before may live on."""
        return Status.UNKNOWN

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        nothing: tuple[SandboxInfo, ...] = ()
        for info in nothing:
            yield info

    async def destroy(self, sandbox_id: str) -> bool:
        raise Unreachable(self._reason, op="destroy")
