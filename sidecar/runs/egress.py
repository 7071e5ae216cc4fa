"""The variables that lead programs in a sandbox to the gateway's proxy: set while the session may
reach something, so that nothing else knows of a proxy.

They are part of a process's environment from its start. A session that begins or ceases to reach
something gets new processes with its next turn; the conversation comes back from its own state.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.bodies import RunRequest
from sidecar.harnesses import agent_server
from sidecar.harnesses.base import belongs
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers import registry
from sidecar.runs.live import Live
from sidecar.workspace.engine import DurableSandbox


def is_proxied(request: RunRequest) -> bool:
    """Whether the turn's processes are to know of the proxy. Where the network is the provider's
    there is none."""
    return request.egress != "off" and registry.check(request.provider).network == "gateway"


async def settled(sandbox: DurableSandbox, live: Live, request: RunRequest) -> Live:
    """The sandbox without processes that know too much or too little. Raises: SandboxError."""
    if live.proxied == is_proxied(request):
        return live
    await sandbox.kill(
        [
            process
            for process in await sandbox.processes()
            if agent_server.is_server(process)
            or any(belongs(harness, process) for harness in HARNESSES.values())
        ]
    )
    return replace(live, adapters={}, proxied=is_proxied(request))
