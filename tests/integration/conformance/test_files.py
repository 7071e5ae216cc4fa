"""Files of a sandbox, and its one port."""

from __future__ import annotations

import asyncio
import io
import tarfile

import aiohttp
import pytest

from contracts.errors import FileMissing, Unreachable, Unsupported
from sidecar.providers.base import Command, Provider, Sandbox, SandboxSpec

WITHIN = 15.0
AGENT_PORT = 2468
ANSWER = (
    "import http.server as s\n"
    "class H(s.BaseHTTPRequestHandler):\n"
    "  def do_GET(self):\n"
    "    self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())\n"
    "s.HTTPServer(('127.0.0.1', 2468), H).serve_forever()"
)


async def test_files_are_written_whole_and_read_back(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 10_000
    await sandbox.write("/home/agent/a/b/c.bin", data, 0o640)
    assert await sandbox.read("/home/agent/a/b/c.bin") == data
    shown = await sandbox.exec(Command(["sh", "-c", "stat -c %a ~/a/b/c.bin; ls ~/a/b"]))
    assert shown.stdout == b"640\nc.bin\n"


async def test_a_secret_is_readable_for_nobody_else(sandbox: Sandbox) -> None:
    await sandbox.write("/home/agent/secret", b"x")
    mode = await sandbox.exec(Command(["stat", "-c", "%a", "/home/agent/secret"]))
    assert mode.stdout == b"600\n"


async def test_a_missing_file_is_told_apart(sandbox: Sandbox) -> None:
    with pytest.raises(FileMissing):
        await sandbox.read("/home/agent/nothing")


async def test_a_file_that_cannot_be_written_is_said(sandbox: Sandbox) -> None:
    with pytest.raises(Unreachable):
        await sandbox.write("/proc/nothing/here", b"x")


async def test_a_link_planted_in_home_leads_nowhere_on_the_host(
    provider: Provider, sandbox: Sandbox, shared_spec: SandboxSpec
) -> None:
    if shared_spec.session_dir is None:
        mount = provider.capabilities.mount
        pytest.skip(f"no directory of ours is in its sandbox ({provider.name}, mount={mount})")
    target = shared_spec.session_dir.parent / "host-file"
    target.write_text("untouched")
    await sandbox.exec(Command(["ln", "-sfn", str(target.parent), "/home/agent/planted"]))
    with pytest.raises(Unreachable):
        await sandbox.write("/home/agent/planted/host-file", b"overwritten")
    assert target.read_text() == "untouched"


async def test_what_is_packed_comes_back_without_what_is_left(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 100
    await sandbox.write("/home/agent/.state/kept/one.bin", data)
    await sandbox.write("/home/agent/.state/left/two", b"two")
    await sandbox.write("/home/agent/.elsewhere", b"three")
    tar = await sandbox.pack([".state"], [".state/left"])
    with tarfile.open(fileobj=io.BytesIO(tar)) as packed:
        assert packed.getnames() == [".state/kept/one.bin"]
    assert await sandbox.pack([".state"], [".state/left"]) == tar, "the same is not the same"
    await sandbox.exec(Command(["rm", "-r", "/home/agent/.state"]))
    await sandbox.unpack(tar)
    assert await sandbox.read("/home/agent/.state/kept/one.bin") == data
    with pytest.raises(FileMissing):
        await sandbox.read("/home/agent/.state/left/two")


async def test_a_tar_that_is_none_is_an_error_of_ours(sandbox: Sandbox) -> None:
    with pytest.raises(Unreachable):
        await sandbox.unpack(b"not a tar")


async def test_the_agents_port_is_reached_and_no_other(sandbox: Sandbox) -> None:
    with pytest.raises(Unsupported):
        sandbox.endpoint(3000)
    endpoint = sandbox.endpoint(AGENT_PORT)
    connector = None if endpoint.socket is None else aiohttp.UnixConnector(endpoint.socket)
    await sandbox.spawn(Command(["python3", "-c", ANSWER], cwd="/"))
    async with (
        aiohttp.ClientSession(connector=connector, headers=dict(endpoint.headers)) as http,
        asyncio.timeout(WITHIN),
    ):
        while (answered := await _ask(http, f"{endpoint.base_url}/v1/any?q=1")) != "/v1/any?q=1":
            assert answered is None, answered
            await asyncio.sleep(0.05)
    await sandbox.kill(await sandbox.processes())


async def _ask(http: aiohttp.ClientSession, url: str) -> str | None:
    """Nothing while nobody is there."""
    try:
        async with http.get(url) as answer:
            return await answer.text() if answer.status == 200 else None
    except aiohttp.ClientError:
        return None
