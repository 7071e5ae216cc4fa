"""Is it up? Small questions with short answers; every one is bounded and none raises."""

from __future__ import annotations

from pathlib import Path

import httpx

PROBE_SECONDS = 2.0


def local_client(socket: Path | None = None) -> httpx.AsyncClient:
    """A client for plain HTTP on this machine: no proxy, and no certificates to load each time."""
    transport = httpx.AsyncHTTPTransport(verify=False, uds=str(socket) if socket else None)
    return httpx.AsyncClient(transport=transport, timeout=PROBE_SECONDS, trust_env=False)


async def answers(
    url: str, *, socket: Path | None = None, headers: dict[str, str] | None = None
) -> bool:
    """Whether `url` (over a unix socket when one is given) is answered with 200."""
    try:
        async with local_client(socket) as client:
            return (await client.get(url, headers=headers)).status_code == 200
    except httpx.TransportError:
        return False
