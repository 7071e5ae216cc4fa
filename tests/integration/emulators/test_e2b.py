"""The unmodified SDK of E2B against the emulator."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import e2b
import httpx
import pytest
from e2b.connection_config import ApiParams
from e2b.sandbox.filesystem.filesystem import WriteEntry

from emulators.__main__ import running
from emulators.options import Options, Ready

TEMPLATE = "holdfast-sandbox"
PRIVATE: e2b.SandboxNetworkOpts = {"allow_public_traffic": False}
PAUSES: e2b.SandboxLifecycle = {"on_timeout": "pause"}
WAKES: e2b.SandboxLifecycle = {"on_timeout": "pause", "auto_resume": True}
PATIENCE_SECONDS = 20
Make = Callable[..., Awaitable[e2b.AsyncSandbox]]
# Says `first`, and `second` only when it is asked for /go: to be seen streaming.
SERVER = """
import http.server, threading
go = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/go":
            go.set()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.say(b"first")
        if self.path == "/slow":
            go.wait(30)
        self.say(b"second")
        self.wfile.write(b"0\\r\\n\\r\\n")
    def say(self, data):
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
async def emulator(sandbox_image: str) -> AsyncIterator[Ready]:
    async with running("e2b", Options(image=sandbox_image)) as ready:
        yield ready


@pytest.fixture
async def control(emulator: Ready) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=120) as http:
        yield http
        await http.delete("/_emulator/faults")


@pytest.fixture
def params(emulator: Ready) -> ApiParams:
    return given(emulator)


def given(emulator: Ready, key: str | None = None, retries: int = 0) -> ApiParams:
    return ApiParams(
        api_key=key or emulator.more["api_key"],
        api_url=emulator.url,
        sandbox_url=emulator.url,
        retries=retries,
    )


@pytest.fixture
async def make(params: ApiParams) -> AsyncIterator[Make]:
    """Makes sandboxes, which are ended with the test."""
    made: list[str] = []

    async def create(**given: Any) -> e2b.AsyncSandbox:
        given = {"template": TEMPLATE, **given}
        sandbox = await e2b.AsyncSandbox.create(**given, **params)
        made.append(sandbox.sandbox_id)
        return sandbox

    yield create
    for sandbox_id in made:
        await e2b.AsyncSandbox.kill(sandbox_id, **params)


@pytest.fixture
async def sandbox(make: Make) -> e2b.AsyncSandbox:
    return await make()


async def inject(control: httpx.AsyncClient, fault: str, path: str, **more: Any) -> None:
    match = {"path": path, **({"method": more.pop("method")} if "method" in more else {})}
    answer = await control.post("/_emulator/faults", json={"fault": fault, "match": match, **more})
    answer.raise_for_status()


async def pull(control: httpx.AsyncClient, lever: str, sandbox: e2b.AsyncSandbox) -> None:
    (await control.post(f"/_emulator/{lever}/{sandbox.sandbox_id}")).raise_for_status()


async def until(state: e2b.SandboxState, sandbox: e2b.AsyncSandbox) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await sandbox.get_info()).state != state:
            await asyncio.sleep(0.05)


async def until_nothing_runs(sandbox: e2b.AsyncSandbox) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await sandbox.commands.list():
            await asyncio.sleep(0.05)


def at_port(sandbox: e2b.AsyncSandbox, port: int, token: str | None = None) -> dict[str, str]:
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
    return {**headers, **({"e2b-traffic-access-token": token} if token else {})}


@pytest.fixture
async def port(emulator: Ready) -> AsyncIterator[httpx.AsyncClient]:
    """Whoever comes by the network to a sandbox."""
    async with httpx.AsyncClient(base_url=emulator.url, timeout=PATIENCE_SECONDS) as http:
        yield http


async def serve_in(sandbox: e2b.AsyncSandbox, http: httpx.AsyncClient, token: str | None) -> None:
    await sandbox.files.write("/tmp/server.py", SERVER)
    handle = await sandbox.commands.run("python3 /tmp/server.py", background=True, timeout=0)
    await handle.disconnect()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await http.get("/", headers=at_port(sandbox, 8000, token))).status_code != 200:
            await asyncio.sleep(0.05)


# ---- the control plane ---------------------------------------------------------------------------


async def test_a_sandbox_is_made_found_and_killed(
    sandbox: e2b.AsyncSandbox, params: ApiParams
) -> None:
    info = await e2b.AsyncSandbox.get_info(sandbox.sandbox_id, **params)
    assert (info.sandbox_id, info.template_id) == (sandbox.sandbox_id, TEMPLATE)
    assert info.state == e2b.SandboxState.RUNNING
    assert await sandbox.is_running()
    again = await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **params)
    assert (await again.commands.run("id -un")).stdout == "agent\n"
    assert await sandbox.kill() is True
    assert await sandbox.kill() is False
    assert not await sandbox.is_running()


async def test_what_is_gone_is_not_found(sandbox: e2b.AsyncSandbox, params: ApiParams) -> None:
    await sandbox.kill()
    for ask in (e2b.AsyncSandbox.connect, e2b.AsyncSandbox.get_info, e2b.AsyncSandbox.pause):
        with pytest.raises(e2b.SandboxNotFoundException):
            await ask(sandbox.sandbox_id, **params)
    with pytest.raises(e2b.SandboxNotFoundException):
        await e2b.AsyncSandbox.set_timeout(sandbox.sandbox_id, 60, **params)
    with pytest.raises(e2b.SandboxNotRunningException):
        await sandbox.commands.run("true")
    with pytest.raises(e2b.SandboxNotRunningException):
        await sandbox.files.read("/etc/hostname")


async def test_a_sandbox_that_is_deleted_behind_our_back_is_gone(
    sandbox: e2b.AsyncSandbox, control: httpx.AsyncClient
) -> None:
    running = asyncio.ensure_future(sandbox.commands.run("sleep 600", timeout=0))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await sandbox.commands.list():
            await asyncio.sleep(0.05)
    await pull(control, "delete", sandbox)
    with pytest.raises(e2b.SandboxNotRunningException):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running
    with pytest.raises(e2b.SandboxNotFoundException):
        await sandbox.get_info()
    assert (await control.post("/_emulator/delete/nobody")).status_code == 404


async def test_an_unknown_template_is_refused(make: Make) -> None:
    with pytest.raises(e2b.SandboxException) as refused:
        await make(template="nobodys")
    assert refused.value.status_code == 404


async def test_a_lease_of_more_than_a_day_is_refused(make: Make) -> None:
    with pytest.raises(e2b.SandboxException) as refused:
        await make(timeout=100_000)
    assert refused.value.status_code == 400


async def test_a_wrong_key_is_refused_everywhere(
    emulator: Ready, sandbox: e2b.AsyncSandbox
) -> None:
    wrong = given(emulator, key="e2b_somebodyelses")
    with pytest.raises(e2b.AuthenticationException):
        await e2b.AsyncSandbox.create(TEMPLATE, **wrong)
    with pytest.raises(e2b.AuthenticationException):
        await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **wrong)
    with pytest.raises(e2b.AuthenticationException):
        await e2b.AsyncSandbox.kill(sandbox.sandbox_id, **wrong)
    with pytest.raises(e2b.AuthenticationException):
        await e2b.AsyncSandbox.list(**wrong).next_items()


async def test_one_idempotency_key_is_one_sandbox(make: Make) -> None:
    key = secrets.token_hex(16)
    first = await make(idempotency_key=key)
    again = await make(idempotency_key=key)
    assert again.sandbox_id == first.sandbox_id
    other = await make(idempotency_key=secrets.token_hex(16))
    assert other.sandbox_id != first.sandbox_id


async def test_a_create_that_is_under_way_is_not_begun_again(make: Make) -> None:
    key = secrets.token_hex(16)
    tries = [make(idempotency_key=key) for _ in range(4)]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    made = {each.sandbox_id for each in answers if isinstance(each, e2b.AsyncSandbox)}
    refused = {each.status_code for each in answers if isinstance(each, e2b.SandboxException)}
    assert len(made) == 1
    assert refused <= {409}


async def test_an_idempotency_key_belongs_to_one_request(make: Make) -> None:
    key = secrets.token_hex(16)
    await make(idempotency_key=key)
    with pytest.raises(e2b.SandboxException) as refused:
        await make(idempotency_key=key, metadata={"another": "request"})
    assert refused.value.status_code == 409


async def test_a_refusal_is_the_answer_to_its_key_for_good(make: Make) -> None:
    key = secrets.token_hex(16)
    for _ in range(2):
        with pytest.raises(e2b.SandboxException) as refused:
            await make(idempotency_key=key, template="nobodys")
        assert refused.value.status_code == 404


async def test_a_create_whose_answer_got_lost_has_made_its_sandbox(
    make: Make, control: httpx.AsyncClient, params: ApiParams
) -> None:
    key, mark = secrets.token_hex(16), {"lost": secrets.token_hex(4)}
    await inject(control, "lose", "^/v2/sandboxes$", method="POST")
    with pytest.raises(httpx.TransportError):
        await make(idempotency_key=key, metadata=mark)
    again = await make(idempotency_key=key, metadata=mark)
    pages = e2b.AsyncSandbox.list(query=e2b.SandboxQuery(metadata=mark), **params)
    assert [each.sandbox_id for each in await pages.next_items()] == [again.sandbox_id]


async def test_a_list_is_filtered_by_metadata_and_comes_in_pages(
    make: Make, params: ApiParams
) -> None:
    mark = {"run & test": secrets.token_hex(4) + " = ü%"}
    made = [(await make(metadata={**mark, "n": str(n)})).sandbox_id for n in range(3)]
    await make(metadata={"run & test": "another"})
    query = e2b.SandboxQuery(metadata=mark)
    pages = e2b.AsyncSandbox.list(query=query, limit=2, **params)
    first, second = await pages.next_items(), await pages.next_items()
    assert not pages.has_next
    assert [each.sandbox_id for each in [*first, *second]] == made[::-1]
    assert first[0].metadata == {**mark, "n": "2"}
    rising = e2b.AsyncSandbox.list(query=query, limit=2, order="asc", **params)
    found = [*await rising.next_items(), *await rising.next_items()]
    assert [each.sandbox_id for each in found] == made


async def test_a_list_tells_states_apart(make: Make, params: ApiParams) -> None:
    mark = {"mark": secrets.token_hex(4)}
    runs, paused = await make(metadata=mark), await make(metadata=mark)
    await paused.pause()

    async def listed(*states: e2b.SandboxState) -> set[str]:
        query = e2b.SandboxQuery(metadata=mark, state=list(states))
        pages = e2b.AsyncSandbox.list(query=query, **params)
        return {each.sandbox_id for each in await pages.next_items()}

    assert await listed(e2b.SandboxState.RUNNING) == {runs.sandbox_id}
    assert await listed(e2b.SandboxState.PAUSED) == {paused.sandbox_id}
    assert await listed() == {runs.sandbox_id, paused.sandbox_id}


# ---- leases, pause and resume --------------------------------------------------------------------


async def test_a_lease_that_ends_kills(make: Make) -> None:
    sandbox = await make(timeout=60)
    await sandbox.set_timeout(1)
    runs = True
    async with asyncio.timeout(PATIENCE_SECONDS):
        while runs:
            with contextlib.suppress(httpx.TransportError):  # the end may cut the question off
                runs = await sandbox.is_running()
            await asyncio.sleep(0.05)
    with pytest.raises(e2b.SandboxNotFoundException):
        await sandbox.get_info()
    with pytest.raises(e2b.SandboxNotRunningException):
        await sandbox.commands.run("true")


async def test_set_timeout_moves_the_end_of_the_lease_both_ways(sandbox: e2b.AsyncSandbox) -> None:
    for seconds in (3000, 100):
        await sandbox.set_timeout(seconds)
        end = (await sandbox.get_info()).end_at.timestamp()
        assert end == pytest.approx(time.time() + seconds, abs=5)


async def test_connect_never_shortens_a_lease(sandbox: e2b.AsyncSandbox, params: ApiParams) -> None:
    await e2b.AsyncSandbox.connect(sandbox.sandbox_id, timeout=3000, **params)
    before = (await sandbox.get_info()).end_at
    assert before.timestamp() == pytest.approx(time.time() + 3000, abs=5)
    await e2b.AsyncSandbox.connect(sandbox.sandbox_id, timeout=60, **params)
    assert (await sandbox.get_info()).end_at == before


async def test_a_lease_that_ends_pauses_a_sandbox_that_was_made_so(
    make: Make, control: httpx.AsyncClient, params: ApiParams
) -> None:
    sandbox = await make(lifecycle=PAUSES)
    handle = await sandbox.commands.run("sleep 600", background=True, timeout=0)
    await handle.disconnect()
    await pull(control, "expire", sandbox)
    await until(e2b.SandboxState.PAUSED, sandbox)
    with pytest.raises(e2b.SandboxNotRunningException):
        await sandbox.commands.run("true")
    resumed = await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **params)
    assert [each.pid for each in await resumed.commands.list()] == [handle.pid]
    assert (await resumed.commands.run(f"cat /proc/{handle.pid}/comm")).stdout == "sleep\n"


async def test_a_paused_sandbox_has_no_lease_to_change(
    sandbox: e2b.AsyncSandbox,
) -> None:
    await sandbox.pause()
    with pytest.raises(e2b.SandboxNotFoundException):
        await sandbox.set_timeout(60)
    assert (await sandbox.get_info()).state == e2b.SandboxState.PAUSED


async def test_pausing_twice_is_said(sandbox: e2b.AsyncSandbox) -> None:
    assert await sandbox.pause() is True
    assert await sandbox.pause() is False


async def test_pausing_cuts_whoever_listens_and_the_command_goes_on_afterwards(
    sandbox: e2b.AsyncSandbox, params: ApiParams
) -> None:
    lines: list[str] = []
    handle = await sandbox.commands.run(
        "echo begun; read line; echo $line", background=True, stdin=True, on_stdout=lines.append
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not lines:
            await asyncio.sleep(0.05)
    await sandbox.pause()
    with pytest.raises(e2b.SandboxNotRunningException):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await handle.wait()
    resumed = await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **params)
    again = await resumed.commands.connect(handle.pid)
    await again.send_stdin("and on\n")
    assert (await again.wait()).stdout == "and on\n"


async def test_a_pause_without_memory_keeps_the_disk_alone(
    sandbox: e2b.AsyncSandbox, params: ApiParams
) -> None:
    await sandbox.commands.run("echo kept > /home/agent/kept; sync")
    left = await sandbox.commands.run("sleep 600", background=True, timeout=0)
    await left.disconnect()
    await sandbox.pause(mode="filesystem")
    resumed = await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **params)
    assert await resumed.files.read("/home/agent/kept") == "kept\n"
    assert await resumed.commands.list() == []


async def test_traffic_with_the_token_wakes_a_sandbox_that_was_made_so(
    make: Make, port: httpx.AsyncClient
) -> None:
    sandbox = await make(lifecycle=WAKES, network=PRIVATE)
    token = sandbox.traffic_access_token
    await serve_in(sandbox, port, token)
    await sandbox.pause()
    refused = await port.get("/", headers=at_port(sandbox, 8000, "wrong"))
    assert refused.status_code == 403
    assert (await sandbox.get_info()).state == e2b.SandboxState.PAUSED
    answer = await port.get("/", headers=at_port(sandbox, 8000, token))
    assert (answer.status_code, answer.text) == (200, "firstsecond")
    assert (await sandbox.get_info()).state == e2b.SandboxState.RUNNING
    await sandbox.pause()
    assert (await sandbox.commands.run("echo awake")).stdout == "awake\n"


async def test_traffic_does_not_wake_a_sandbox_that_was_not_made_so(
    make: Make, port: httpx.AsyncClient
) -> None:
    sandbox = await make(lifecycle=PAUSES)
    await sandbox.pause()
    answer = await port.get("/", headers=at_port(sandbox, 8000))
    assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")
    assert (await sandbox.get_info()).state == e2b.SandboxState.PAUSED


# ---- commands ------------------------------------------------------------------------------------


async def test_a_command_has_its_output_directory_and_environment(make: Make) -> None:
    sandbox = await make(envs={"OF_THE_BOX": "one", "BOTH": "box"})
    result = await sandbox.commands.run(
        "echo $OF_THE_BOX $BOTH; pwd; echo wrong >&2", envs={"BOTH": "command"}, cwd="/tmp"
    )
    assert (result.stdout, result.stderr) == ("one command\n/tmp\n", "wrong\n")
    assert (await sandbox.commands.run("pwd")).stdout == "/home/agent\n"


async def test_a_command_runs_as_the_user_that_is_named(sandbox: e2b.AsyncSandbox) -> None:
    assert (await sandbox.commands.run("id -u; echo ~", user="root")).stdout == "0\n/root\n"
    with pytest.raises(e2b.AuthenticationException):
        await sandbox.commands.run("true", user="nobodys")


async def test_an_exit_code_is_told(sandbox: e2b.AsyncSandbox) -> None:
    with pytest.raises(e2b.CommandExitException) as ended:
        await sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (ended.value.exit_code, ended.value.stdout, ended.value.stderr) == (3, "out\n", "err\n")


async def test_a_directory_that_is_not_there_is_an_invalid_argument(
    sandbox: e2b.AsyncSandbox,
) -> None:
    with pytest.raises(e2b.InvalidArgumentException, match="/nowhere"):
        await sandbox.commands.run("true", cwd="/nowhere")


async def test_output_comes_while_the_command_runs(sandbox: e2b.AsyncSandbox) -> None:
    lines: list[str] = []
    handle = await sandbox.commands.run(
        "echo one; read go; echo $go", background=True, stdin=True, on_stdout=lines.append
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while lines != ["one\n"]:
            await asyncio.sleep(0.05)
    await sandbox.commands.send_stdin(handle.pid, "two\n")
    await handle.wait()
    assert lines == ["one\n", "two\n"]


async def test_stdin_reaches_the_command_and_ends(sandbox: e2b.AsyncSandbox) -> None:
    handle = await sandbox.commands.run("cat | sha256sum", background=True, stdin=True)
    data = b"x" * 300_000
    await handle.send_stdin(data)
    await handle.close_stdin()
    result = await handle.wait()
    same = await sandbox.commands.run("head -c 300000 /dev/zero | tr '\\0' x | sha256sum")
    assert result.stdout == same.stdout


async def test_a_command_without_stdin_cannot_be_written_to(sandbox: e2b.AsyncSandbox) -> None:
    assert (await sandbox.commands.run("cat")).stdout == ""
    handle = await sandbox.commands.run("sleep 600", background=True)
    with pytest.raises(e2b.SandboxException, match="stdin"):
        await handle.send_stdin("nobody reads it")
    await handle.kill()


async def test_much_output_arrives_whole(sandbox: e2b.AsyncSandbox) -> None:
    result = await sandbox.commands.run("yes 0123456789abcde | head -c 3000000")
    assert len(result.stdout) == 3_000_000


async def test_a_command_that_takes_too_long_is_killed(sandbox: e2b.AsyncSandbox) -> None:
    started = time.monotonic()
    with pytest.raises(e2b.TimeoutException):
        await sandbox.commands.run("exec sleep 600", timeout=1)
    assert time.monotonic() - started < PATIENCE_SECONDS
    await until_nothing_runs(sandbox)


async def test_a_background_command_dies_by_its_time_also_when_nobody_listens(
    sandbox: e2b.AsyncSandbox,
) -> None:
    handle = await sandbox.commands.run("exec sleep 600", background=True, timeout=1)
    await handle.disconnect()
    await until_nothing_runs(sandbox)


async def test_a_background_command_outlives_who_started_it(
    sandbox: e2b.AsyncSandbox, params: ApiParams
) -> None:
    handle = await sandbox.commands.run(
        "read line; echo got $line", background=True, stdin=True, timeout=0
    )
    await handle.disconnect()
    other = await e2b.AsyncSandbox.connect(sandbox.sandbox_id, **params)
    again = await other.commands.connect(handle.pid)
    await other.commands.send_stdin(handle.pid, "it\n")
    assert (await again.wait()).stdout == "got it\n"
    late = await other.commands.connect(handle.pid)
    assert (await late.wait()).exit_code == 0


async def test_two_may_listen_to_one_command(sandbox: e2b.AsyncSandbox) -> None:
    first = await sandbox.commands.run("read line; echo $line", background=True, stdin=True)
    second = await sandbox.commands.connect(first.pid)
    await first.send_stdin("both\n")
    assert [(await each.wait()).stdout for each in (first, second)] == ["both\n", "both\n"]


async def test_killing_a_command_says_whether_it_was_there(sandbox: e2b.AsyncSandbox) -> None:
    handle = await sandbox.commands.run("exec sleep 600", background=True, timeout=0)
    assert await sandbox.commands.kill(handle.pid) is True
    with pytest.raises(e2b.CommandExitException) as ended:
        await handle.wait()
    assert (ended.value.exit_code, ended.value.error) == (-1, "signal: killed")
    assert await sandbox.commands.kill(handle.pid) is False
    with pytest.raises(e2b.NotFoundException):
        await sandbox.commands.connect(999_999)


# ---- files ---------------------------------------------------------------------------------------


async def test_files_are_written_read_listed_and_removed(sandbox: e2b.AsyncSandbox) -> None:
    written = await sandbox.files.write("deep/er/text.txt", "grüße")
    assert written.path == "/home/agent/deep/er/text.txt"
    assert await sandbox.files.read(written.path) == "grüße"
    data = bytes(range(256)) * 2000
    await sandbox.files.write("/tmp/binary", data)
    assert bytes(await sandbox.files.read("/tmp/binary", format="bytes")) == data
    assert await sandbox.files.exists("deep/er/text.txt")
    entries = await sandbox.files.list("deep", depth=2)
    assert [(each.path, each.type) for each in entries] == [
        ("/home/agent/deep/er", e2b.FileType.DIR),
        ("/home/agent/deep/er/text.txt", e2b.FileType.FILE),
    ]
    assert (entries[1].size, entries[1].owner) == (7, "agent")
    await sandbox.files.remove("deep")
    assert not await sandbox.files.exists("deep/er/text.txt")


async def test_several_files_go_in_one_request_or_as_streams(
    sandbox: e2b.AsyncSandbox, tmp_path: Path
) -> None:
    await sandbox.files.write_files(
        [
            WriteEntry(path="/tmp/several/a", data="a"),
            WriteEntry(path="/tmp/several/b", data=b"b"),
        ]
    )
    (tmp_path / "local").write_bytes(b"streamed" * 10_000)
    with (tmp_path / "local").open("rb") as stream:
        await sandbox.files.write("/tmp/several/c", stream)
    await sandbox.files.write("/tmp/several/d", b"packed" * 1000, gzip=True)
    sizes = {each.name: each.size for each in await sandbox.files.list("/tmp/several")}
    assert sizes == {"a": 1, "b": 1, "c": 80_000, "d": 6000}


async def test_a_file_that_is_missing_is_not_found(sandbox: e2b.AsyncSandbox) -> None:
    with pytest.raises(e2b.FileNotFoundException):
        await sandbox.files.read("/nowhere/at/all")
    with pytest.raises(e2b.FileNotFoundException):
        await sandbox.files.list("/nowhere/at/all")
    with pytest.raises(e2b.InvalidArgumentException):
        await sandbox.files.read("/tmp")
    assert not await sandbox.files.exists("/nowhere/at/all")


async def test_directories_are_made_once_and_moved(sandbox: e2b.AsyncSandbox) -> None:
    assert await sandbox.files.make_dir("/tmp/made/twice") is True
    assert await sandbox.files.make_dir("/tmp/made/twice") is False
    moved = await sandbox.files.rename("/tmp/made/twice", "/tmp/moved/here")
    assert (moved.path, moved.type) == ("/tmp/moved/here", e2b.FileType.DIR)
    assert not await sandbox.files.exists("/tmp/made/twice")


# ---- ports ---------------------------------------------------------------------------------------


async def test_a_port_is_reached_by_headers_or_by_host(
    sandbox: e2b.AsyncSandbox, port: httpx.AsyncClient
) -> None:
    await serve_in(sandbox, port, None)
    by_host = await port.get("/", headers={"Host": sandbox.get_host(8000)})
    assert (by_host.status_code, by_host.text) == (200, "firstsecond")


async def test_a_private_sandbox_wants_its_token(make: Make, port: httpx.AsyncClient) -> None:
    sandbox = await make(network=PRIVATE)
    await serve_in(sandbox, port, sandbox.traffic_access_token)
    for token in (None, "wrong"):
        refused = await port.get("/", headers=at_port(sandbox, 8000, token))
        assert refused.status_code == 403
        assert "e2b-traffic-access-token" in refused.json()["message"]


async def test_a_public_sandbox_has_no_token(sandbox: e2b.AsyncSandbox) -> None:
    assert sandbox.traffic_access_token is None


async def test_an_answer_streams_through(
    sandbox: e2b.AsyncSandbox, port: httpx.AsyncClient
) -> None:
    await serve_in(sandbox, port, None)
    headers = at_port(sandbox, 8000)
    async with port.stream("GET", "/slow", headers=headers) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"first"
        assert (await port.get("/go", headers=headers)).status_code == 200
        assert await anext(chunks) == b"second"


async def test_a_port_where_nobody_listens_is_said_to_be_closed(
    sandbox: e2b.AsyncSandbox, port: httpx.AsyncClient
) -> None:
    answer = await port.get("/", headers=at_port(sandbox, 8001))
    assert answer.status_code == 502
    assert answer.json()["message"] == "The sandbox is running but port is not open"


async def test_pausing_cuts_a_stream_from_a_port(
    sandbox: e2b.AsyncSandbox, port: httpx.AsyncClient
) -> None:
    await serve_in(sandbox, port, None)
    async with port.stream("GET", "/slow", headers=at_port(sandbox, 8000)) as answer:
        chunks = answer.aiter_raw()
        assert await anext(chunks) == b"first"
        await sandbox.pause()
        with pytest.raises(httpx.TransportError):
            await anext(chunks)


async def test_envd_wants_its_token(sandbox: e2b.AsyncSandbox, port: httpx.AsyncClient) -> None:
    headers = at_port(sandbox, 49983)
    assert (await port.get("/health", headers=headers)).status_code == 204
    asked = await port.get("/files", params={"path": "/etc/passwd"}, headers=headers)
    assert asked.status_code == 401
    listed = await port.post("/process.Process/List", json={}, headers=headers)
    assert listed.status_code == 401


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("401", e2b.AuthenticationException),
        ("429", e2b.RateLimitException),
        ("503", e2b.ServiceBusyException),
        ("reset", httpx.TransportError),
    ],
)
async def test_a_fault_of_the_control_plane_is_what_the_sdk_makes_of_it(
    sandbox: e2b.AsyncSandbox, control: httpx.AsyncClient, fault: str, error: type[Exception]
) -> None:
    await inject(control, fault, f"^/sandboxes/{sandbox.sandbox_id}$")
    with pytest.raises(error):
        await sandbox.get_info()
    assert (await sandbox.get_info()).state == e2b.SandboxState.RUNNING


async def test_a_control_plane_that_hangs_is_given_up(
    sandbox: e2b.AsyncSandbox, control: httpx.AsyncClient
) -> None:
    await inject(control, "hang", f"^/sandboxes/{sandbox.sandbox_id}$")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await sandbox.get_info()


async def test_a_busy_control_plane_is_asked_again_by_the_sdk_itself(
    emulator: Ready, sandbox: e2b.AsyncSandbox, control: httpx.AsyncClient
) -> None:
    await inject(control, "503", f"^/sandboxes/{sandbox.sandbox_id}$", times=2)
    patient = given(emulator, retries=3)
    info = await e2b.AsyncSandbox.get_info(sandbox.sandbox_id, **patient)
    assert info.state == e2b.SandboxState.RUNNING


async def test_a_connection_to_envd_that_breaks_says_nothing_about_the_sandbox(
    sandbox: e2b.AsyncSandbox, control: httpx.AsyncClient
) -> None:
    await inject(control, "reset", "^/process.Process/Start$")
    with pytest.raises(Exception) as broken:  # noqa: PT011  # the SDK hands on its transport's
        await sandbox.commands.run("true")
    assert not isinstance(broken.value, e2b.NotFoundException | e2b.SandboxNotRunningException)
    assert (await sandbox.commands.run("echo fine")).stdout == "fine\n"


# ---- templates -----------------------------------------------------------------------------------


async def test_a_template_is_built_of_uploaded_files_and_makes_sandboxes(
    make: Make, params: ApiParams, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the image")
    name = f"built-{secrets.token_hex(4)}"
    template = e2b.AsyncTemplate(file_context_path=tmp_path)
    builder = template.from_image("debian:trixie-slim").copy("file", "/file").run_cmd("true")
    assert not await e2b.AsyncTemplate.exists(name, **params)
    logs: list[str] = []
    built = await e2b.AsyncTemplate.build(
        builder, f"{name}:one", on_build_logs=lambda e: logs.append(e.message), **params
    )
    assert "Uploaded 'file'" in logs
    assert await e2b.AsyncTemplate.exists(f"{name}:one", **params)
    assert not await e2b.AsyncTemplate.exists(f"{name}:two", **params)
    (tag,) = await e2b.AsyncTemplate.get_tags(name, **params)
    assert (tag.tag, tag.build_id) == ("one", built.build_id)
    assert await (await make(template=f"{name}:one")).is_running()
    with pytest.raises(e2b.SandboxException):
        await make(template=name)
