"""The unmodified SDK of Modal against the emulator."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpclib.exceptions
import httpx
import modal
import pytest
from modal import exception
from modal_proto.api_pb2 import CLIENT_TYPE_CLIENT

from tests.support.emulators.fixtures import Emulate, Emulator

APP = "tests"
COOKIE = "_modal_connect_token"
Make = Callable[..., Awaitable[modal.Sandbox]]
# Tells what it is asked, on the port of connect tokens.
ECHO = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{self.path}\\n{self.headers}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", 8080), Echo).serve_forever()
"""


@pytest.fixture(scope="module")
async def emulator(emulate: Emulate) -> AsyncIterator[Emulator]:
    async with emulate("modal") as started:
        yield started


@pytest.fixture
async def control(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=30) as http:
        yield http
        await http.delete("/_emulator/faults")


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[modal.Client]:
    async with opened(emulator) as found:
        yield found


def opened(emulator: Emulator, token_secret: str = "") -> modal.Client:
    secret = token_secret or emulator.more["token_secret"]
    return modal.Client(emulator.url, CLIENT_TYPE_CLIENT, (emulator.more["token_id"], secret))


@pytest.fixture
async def app(client: modal.Client) -> modal.App:
    return await modal.App.lookup.aio(APP, client=client, create_if_missing=True)


@pytest.fixture
async def make(client: modal.Client, app: modal.App) -> AsyncIterator[Make]:
    """Makes sandboxes, which are ended with the test."""
    made: list[modal.Sandbox] = []

    async def create(*argv: str, **given: Any) -> modal.Sandbox:
        given = {"image": modal.Image.from_registry("debian:trixie"), "timeout": 300, **given}
        made.append(await modal.Sandbox.create.aio(*argv, app=app, client=client, **given))
        return made[-1]

    yield create
    for sandbox in made:
        await sandbox.terminate.aio()
        await sandbox.detach.aio()  # type: ignore[no-untyped-call]


@pytest.fixture
async def sandbox(make: Make) -> modal.Sandbox:
    return await make()


async def run(sandbox: modal.Sandbox, *argv: str, stdin: bytes = b"", **given: Any) -> Any:
    """Exit code, stdout, stderr."""
    process = await sandbox.exec.aio(*argv, **given)
    process.stdin.write(stdin)
    process.stdin.write_eof()
    await process.stdin.drain.aio()
    outputs = await process.stdout.read.aio(), await process.stderr.read.aio()
    return await process.wait.aio(), *outputs


async def inject(control: httpx.AsyncClient, fault: str, rpc: str, **more: Any) -> None:
    answer = await control.post(
        "/_emulator/faults", json={"fault": fault, "match": {"rpc": rpc}, **more}
    )
    answer.raise_for_status()


async def pull(control: httpx.AsyncClient, lever: str, sandbox: modal.Sandbox) -> None:
    (await control.post(f"/_emulator/{lever}/{sandbox.object_id}")).raise_for_status()


def unique() -> str:
    return f"name-{secrets.token_hex(6)}"


# ---- account, app, image -------------------------------------------------------------------------


async def test_a_wrong_token_is_refused(emulator: Emulator) -> None:
    async with opened(emulator, "as-other") as client:
        with pytest.raises(exception.AuthError):
            await client.hello.aio()


async def test_an_app_is_made_only_when_asked_for(client: modal.Client) -> None:
    name = unique()
    with pytest.raises(exception.NotFoundError):
        await modal.App.lookup.aio(name, client=client)
    made = await modal.App.lookup.aio(name, client=client, create_if_missing=True)
    assert (await modal.App.lookup.aio(name, client=client)).app_id == made.app_id


async def test_an_image_is_built_once(control: httpx.AsyncClient, app: modal.App) -> None:
    name = unique()
    first = await modal.Image.from_registry(name).build.aio(app)
    builds = (await control.get("/_modal/builds")).json()
    assert first.object_id == builds[-1]
    again = await modal.Image.from_registry(name).build.aio(app)
    assert again.object_id == first.object_id
    assert (await control.get("/_modal/builds")).json() == builds


async def test_an_image_is_found_by_its_id_or_not_at_all(make: Make, app: modal.App) -> None:
    built = await modal.Image.from_registry(unique()).build.aio(app)
    sandbox = await make(image=modal.Image.from_id(built.object_id))
    assert await sandbox.poll.aio() is None
    with pytest.raises(exception.NotFoundError):
        await make(image=modal.Image.from_id("im-0000000000000000000000"))


# ---- a sandbox -----------------------------------------------------------------------------------


async def test_a_name_belongs_to_one_living_sandbox(client: modal.Client, make: Make) -> None:
    name = unique()
    first = await make(name=name)
    with pytest.raises(exception.AlreadyExistsError):
        await make(name=name)
    found = await modal.Sandbox.from_name.aio(APP, name, client=client)
    assert found.object_id == first.object_id
    await first.terminate.aio(wait=True)
    with pytest.raises(exception.NotFoundError):
        await modal.Sandbox.from_name.aio(APP, name, client=client)
    second = await make(name=name)
    assert second.object_id != first.object_id


async def test_one_of_two_that_are_made_at_once_gets_the_name(make: Make) -> None:
    name = unique()
    made = await asyncio.gather(make(name=name), make(name=name), return_exceptions=True)
    assert sorted(type(each).__name__ for each in made) == ["AlreadyExistsError", "Sandbox"]


async def test_a_terminated_sandbox_is_137_and_still_known(
    client: modal.Client, sandbox: modal.Sandbox
) -> None:
    found = await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    assert await found.poll.aio() is None
    assert await sandbox.terminate.aio(wait=True) == 137
    assert await found.poll.aio() == 137
    with pytest.raises(exception.SandboxTerminatedError):
        await found.wait.aio()
    dead = await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    assert dead.returncode == 137
    await dead.terminate.aio()
    with pytest.raises(exception.ConflictError):
        await dead.exec.aio("true")


async def test_a_command_ends_with_its_sandbox(sandbox: modal.Sandbox) -> None:
    process = await sandbox.exec.aio("sleep", "600")
    waiting = asyncio.ensure_future(process.wait.aio())
    await sandbox.terminate.aio(wait=True)
    with pytest.raises(exception.NotFoundError):
        async with asyncio.timeout(10):
            await waiting


async def test_past_its_lifetime_a_sandbox_is_124(make: Make) -> None:
    started = time.monotonic()
    sandbox = await make(timeout=1)
    with pytest.raises(exception.SandboxTimeoutError):
        await sandbox.wait.aio()
    assert time.monotonic() - started >= 1
    assert await sandbox.poll.aio() == 124


async def test_a_lifetime_can_be_ended_by_the_lever(
    control: httpx.AsyncClient, sandbox: modal.Sandbox
) -> None:
    await pull(control, "expire", sandbox)
    assert await sandbox.poll.aio() == 124


async def test_a_sandbox_that_was_deleted_is_not_found(
    control: httpx.AsyncClient, client: modal.Client, app: modal.App
) -> None:
    image = modal.Image.from_registry("debian:trixie")
    sandbox = await modal.Sandbox.create.aio(app=app, image=image, client=client)
    await pull(control, "delete", sandbox)
    with pytest.raises(exception.NotFoundError):
        await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    assert (await control.post(f"/_emulator/expire/{sandbox.object_id}")).status_code == 404


async def test_a_sandbox_ends_with_its_main_process(make: Make) -> None:
    sandbox = await make("sh", "-c", "echo said; exit 5")
    await sandbox.wait.aio()
    assert sandbox.returncode == 5
    assert await sandbox.stdout.read.aio() == "said\n"


async def test_sandboxes_are_listed_by_app_and_tags_page_by_page(
    client: modal.Client, app: modal.App, make: Make
) -> None:
    mark = unique()
    made = [await make(tags={"mark": mark, "number": str(number)}) for number in range(3)]

    async def listed(app_id: str, **tags: str) -> list[str]:
        found = modal.Sandbox.list.aio(app_id=app_id, tags=tags, client=client)
        return sorted([each.object_id async for each in found])

    assert app.app_id is not None
    assert await listed(app.app_id, mark=mark) == sorted(each.object_id for each in made)
    assert await listed(app.app_id, mark=mark, number="1") == [made[1].object_id]
    assert await listed("ap-another", mark=mark) == []
    assert await made[1].get_tags.aio() == {"mark": mark, "number": "1"}
    await made[1].set_tags.aio({"mark": "changed"})
    await made[2].terminate.aio(wait=True)
    assert await listed(app.app_id, mark=mark) == [made[0].object_id]


# ---- commands and files --------------------------------------------------------------------------


async def test_a_command_has_stdin_two_outputs_and_an_exit_code(sandbox: modal.Sandbox) -> None:
    done = await run(sandbox, "sh", "-c", "cat; echo err >&2; exit 3", stdin=b"in\n")
    assert done == (3, "in\n", "err\n")


async def test_commands_are_root_and_a_signal_is_128_and_more(sandbox: modal.Sandbox) -> None:
    assert await run(sandbox, "sh", "-c", "id -u; kill -TERM $$") == (128 + 15, "0\n", "")


async def test_workdir_and_env_hold_for_one_command(make: Make) -> None:
    sandbox = await make(env={"OF": "the sandbox"}, workdir="/opt")
    show = ("sh", "-c", 'pwd; echo "$OF $MARK"')
    first = await run(sandbox, *show, workdir="/tmp", env={"MARK": "here"})
    assert first[1] == "/tmp\nthe sandbox here\n"
    assert (await run(sandbox, *show))[1] == "/opt\nthe sandbox \n"


async def test_bytes_go_through_unchanged_in_both_directions(sandbox: modal.Sandbox) -> None:
    data = bytes(range(256)) * 8_000
    assert await run(sandbox, "cat", stdin=data, text=False) == (0, data, b"")


async def test_output_comes_while_the_command_runs(sandbox: modal.Sandbox) -> None:
    process = await sandbox.exec.aio("sh", "-c", "echo first; read line; echo $line", bufsize=1)
    lines = aiter(process.stdout)
    async with asyncio.timeout(10):
        assert await anext(lines) == "first\n"
        process.stdin.write("second\n")
        await process.stdin.drain.aio()
        assert await anext(lines) == "second\n"


async def test_a_command_past_its_timeout_is_minus_one_and_dead(sandbox: modal.Sandbox) -> None:
    started = time.monotonic()
    process = await sandbox.exec.aio("sh", "-c", "sleep 601", timeout=1)
    assert await process.wait.aio() == -1
    assert time.monotonic() - started < 5
    async with asyncio.timeout(10):
        while (await run(sandbox, "pgrep", "-f", "sleep 601"))[0] == 0:
            await asyncio.sleep(0.1)


async def test_what_cannot_be_started_is_refused(sandbox: modal.Sandbox) -> None:
    with pytest.raises(exception.InvalidError):
        await sandbox.exec.aio("no-such-command")


async def test_files_are_written_read_listed_and_removed(sandbox: modal.Sandbox) -> None:
    files = sandbox.filesystem
    data = bytes(range(256)) * 4_000
    await files.write_bytes.aio(data, "/tmp/a/b.bin")
    assert await files.read_bytes.aio("/tmp/a/b.bin") == data
    await files.write_text.aio("text", "/tmp/a/c.txt")
    assert await files.read_text.aio("/tmp/a/c.txt") == "text"
    listed = await files.list_files.aio("/tmp/a")
    assert [(each.name, each.size) for each in listed] == [("b.bin", len(data)), ("c.txt", 4)]
    assert (await files.stat.aio("/tmp/a")).type.value == "directory"
    await files.make_directory.aio("/tmp/a/d")
    with pytest.raises(exception.SandboxFilesystemDirectoryNotEmptyError):
        await files.remove.aio("/tmp/a")
    await files.remove.aio("/tmp/a", recursive=True)
    with pytest.raises(exception.SandboxFilesystemNotFoundError):
        await files.read_text.aio("/tmp/a/c.txt")
    with pytest.raises(exception.SandboxFilesystemIsADirectoryError):
        await files.write_bytes.aio(data, "/tmp")


# ---- ports ---------------------------------------------------------------------------------------


async def listening(sandbox: modal.Sandbox) -> None:
    """The echo server runs and answers."""
    await sandbox.exec.aio("python3", "-c", ECHO)
    probe = "import socket; socket.create_connection(('127.0.0.1', 8080))"
    async with asyncio.timeout(10):
        while (await run(sandbox, "python3", "-c", probe))[0] != 0:
            pass


async def test_a_connect_token_opens_its_port_by_header_query_or_cookie(
    sandbox: modal.Sandbox,
) -> None:
    await listening(sandbox)
    port = await sandbox.create_connect_token.aio(user_metadata={"user": 7})
    own = {"Authorization": "Bearer of-the-server-inside"}
    async with httpx.AsyncClient() as http:
        by_header = await http.get(
            f"{port.url}/a?b=c", headers={"Authorization": f"Bearer {port.token}"}
        )
        by_query = await http.get(f"{port.url}/a?b=c&{COOKIE}={port.token}", headers=own)
        cookie = {"Cookie": f"other=1; {COOKIE}={port.token}"}
        by_cookie = await http.get(f"{port.url}/a?b=c", headers={**own, **cookie})
        refused = await http.get(port.url, headers=own)
    for answer in (by_header, by_query, by_cookie):
        assert answer.status_code == 200
        assert answer.text.startswith("/a?b=c\n")
        assert 'x-verified-user-data: {"user": 7}' in answer.text.lower()
        assert port.token not in answer.text
    assert "Bearer of-the-server-inside" in by_cookie.text
    assert "other=1" in by_cookie.text
    assert refused.status_code == 401


async def test_a_port_where_nobody_listens_is_502(sandbox: modal.Sandbox) -> None:
    port = await sandbox.create_connect_token.aio(port=1234)
    async with httpx.AsyncClient() as http:
        answer = await http.get(port.url, headers={"Authorization": f"Bearer {port.token}"})
    assert answer.status_code == 502


async def test_a_connect_token_ends_with_its_sandbox(sandbox: modal.Sandbox) -> None:
    port = await sandbox.create_connect_token.aio()
    await sandbox.terminate.aio(wait=True)
    async with httpx.AsyncClient() as http:
        answer = await http.get(port.url, headers={"Authorization": f"Bearer {port.token}"})
    assert answer.status_code == 404


async def test_tunnels_lead_to_the_ports_that_were_opened(make: Make) -> None:
    sandbox = await make(unencrypted_ports=[8080])
    await listening(sandbox)
    tunnels = await sandbox.tunnels.aio()
    assert list(tunnels) == [8080]
    untrusting = ssl.create_default_context()
    untrusting.check_hostname = False
    untrusting.verify_mode = ssl.CERT_NONE
    for address, tls in (
        (tunnels[8080].tcp_socket, None),
        (tunnels[8080].tls_socket, untrusting),
    ):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        writer.write(b"GET /there HTTP/1.0\r\n\r\n")
        assert b"/there\n" in await reader.read()
        writer.close()
        await writer.wait_closed()


# ---- faults --------------------------------------------------------------------------------------


async def test_one_unavailable_is_not_noticed_and_many_are_an_error(
    control: httpx.AsyncClient, client: modal.Client, sandbox: modal.Sandbox
) -> None:
    await inject(control, "503", "SandboxWaitV2")
    await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    await inject(control, "503", "SandboxWaitV2", times=None)
    with pytest.raises(exception.ServiceError):
        await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)


async def test_a_full_account_is_resource_exhausted(control: httpx.AsyncClient, make: Make) -> None:
    await inject(control, "429", "SandboxCreateV2")
    with pytest.raises(exception.ResourceExhaustedError):
        await make()


async def test_a_call_that_hangs_can_be_given_up(
    control: httpx.AsyncClient, client: modal.Client, sandbox: modal.Sandbox
) -> None:
    await inject(control, "hang", "SandboxWaitV2")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)
    assert await sandbox.poll.aio() is None


async def test_a_connection_that_is_reset_again_and_again_is_an_error(
    control: httpx.AsyncClient, client: modal.Client, sandbox: modal.Sandbox
) -> None:
    await inject(control, "reset", "SandboxWaitV2", times=None)
    with pytest.raises((grpclib.exceptions.StreamTerminatedError, exception.ConnectionError)):
        await modal.Sandbox.from_id.aio(sandbox.object_id, client=client)


async def test_a_lost_answer_to_create_leaves_a_sandbox_that_has_the_name(
    control: httpx.AsyncClient, client: modal.Client, make: Make
) -> None:
    name = unique()
    await inject(control, "lose", "SandboxCreateV2")
    with pytest.raises(exception.AlreadyExistsError):  # the SDK's own second attempt
        await make(name=name)
    found = await modal.Sandbox.from_name.aio(APP, name, client=client)
    assert (await run(found, "echo", "there"))[:2] == (0, "there\n")
    await found.terminate.aio(wait=True)
    await found.detach.aio()  # type: ignore[no-untyped-call]


async def test_a_lost_answer_to_a_command_does_not_run_it_twice(
    control: httpx.AsyncClient, sandbox: modal.Sandbox
) -> None:
    await inject(control, "lose", "TaskExecStart")
    await run(sandbox, "sh", "-c", "echo once >> /tmp/log")
    assert await sandbox.filesystem.read_text.aio("/tmp/log") == "once\n"
