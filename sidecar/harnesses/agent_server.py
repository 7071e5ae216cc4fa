"""sandbox-agent in a sandbox: started there, reached through the sandbox's endpoint.

It runs without a token of its own: its port is inside the sandbox's empty network, and the only way
in is a socket that the host alone may open (docs/adr/0004-sandbox-agent-without-token.md).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import aiohttp

from contracts.errors import HarnessStartFailed, Unreachable
from sidecar.harnesses.untrusted import is_good
from sidecar.providers.base import HOME, Command, Sandbox, SandboxProcess

PORT = 2468
START_SECONDS = 20
CALL_SECONDS = 60
LOG_SECONDS = 10
# Longer and longer: where dozens start at a time, asking must not be what takes the time.
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.01, 0.25
LOG = "/tmp/sandbox-agent.log"  # noqa: S108 - the box's own
BIN = "/opt/harness/bin"
ENVIRONMENT = {
    "PATH": f"{BIN}:/opt/node/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108 - the box's own
    "SANDBOX_AGENT_REQUIRE_PREINSTALL": "1",
    # Its default cuts a turn off after two minutes; the end of a turn is ours to judge.
    "SANDBOX_AGENT_ACP_REQUEST_TIMEOUT_MS": "86400000",
}
# The gateway itself, and what an agent serves in its own sandbox, are reached without a proxy.
DIRECT = "127.0.0.1,localhost,::1"
# Constant text: the command comes as arguments.
START_SCRIPT = f'exec "$@" >{LOG} 2>&1'


def proxies(gateway: str) -> dict[str, str]:
    """What makes programs ask the gateway for everything else: curl and pip know the one spelling,
    others the other."""
    env = {"HTTP_PROXY": gateway, "HTTPS_PROXY": gateway, "NO_PROXY": DIRECT}
    return {**env, **{name.lower(): value for name, value in env.items()}}


@contextlib.asynccontextmanager
async def connect(sandbox: Sandbox) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client of the sandbox's agent server."""
    endpoint = sandbox.endpoint(PORT)
    # aiohttp, not httpx: every turn ends by cancelling a read, which over a unix socket httpx's
    # backend answers now and then with an InvalidStateError in the log.
    async with aiohttp.ClientSession(
        f"{endpoint.base_url}/",  # it may have a path: what is asked for is below it
        connector=aiohttp.UnixConnector(endpoint.socket) if endpoint.socket else None,
        headers=endpoint.headers,
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
        # It is not trusted: no cookie of it is kept, and nothing that it packs is blown up here.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as http:
        yield http


async def ensure_running(
    sandbox: Sandbox, http: aiohttp.ClientSession, env: Mapping[str, str]
) -> None:
    """Start the agent server unless it answers. Raises: HarnessStartFailed, Unreachable."""
    if await _healthy(http):
        return
    server = [f"{BIN}/sandbox-agent", "server", "--no-token", "--no-telemetry"]
    server += ["--host", "127.0.0.1", "--port", str(PORT)]
    await sandbox.spawn(
        # In HOME: from a workspace that was mounted anew under it, it could start nothing more.
        Command(
            ["/bin/sh", "-c", START_SCRIPT, "sh", *server], cwd=HOME, env={**ENVIRONMENT, **env}
        )
    )
    pause = POLL_SECONDS
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                if await _healthy(http):
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 1.25, LONGEST_POLL_SECONDS)
    except TimeoutError:
        raise HarnessStartFailed(
            f"sandbox-agent did not answer in {START_SECONDS} s: {await _log(sandbox)}"
        ) from None


def is_server(process: SandboxProcess) -> bool:
    return process.argv[0] == f"{BIN}/sandbox-agent"


async def _healthy(http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get("v1/health", allow_redirects=False) as answer:
            return is_good(answer)
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _log(sandbox: Sandbox) -> str:
    try:
        # its end alone: who is in there may have written any amount
        tail = Command(["tail", "-c", "4000", LOG], cwd="/", timeout=LOG_SECONDS)
        said = await sandbox.exec(tail)
        return (said.stdout + said.stderr).decode("utf-8", "replace").strip()[-1000:]
    except Unreachable as error:
        return str(error)
