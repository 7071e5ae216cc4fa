"""The unmodified SDK of Daytona against the emulator."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    CreateSnapshotParams,
    DaytonaConfig,
    Image,
    ListSandboxesQuery,
    SessionExecuteRequest,
)
from daytona.common import errors

from tests.support.emulators.fixtures import Emulate, Emulator

Make = Callable[..., Awaitable[AsyncSandbox]]
PORT = 8000
TOKEN = "X-Daytona-Preview-Token"
# Answers with its path and headers, or with the body; drop by drop where asked to.
ECHO = """
import http.server, time
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/drip":
            for number in range(3000):
                self.wfile.write(b"%d\\n" % number)
                time.sleep(0.02)
        self.wfile.write((self.path + "\\n" + str(self.headers)).encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""


@pytest.fixture(scope="module")
async def emulator(emulate: Emulate) -> AsyncIterator[Emulator]:
    async with emulate("daytona") as running:
        yield running


@pytest.fixture
async def control(emulator: Emulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=emulator.control, timeout=30) as http:
        yield http
        await http.delete("/_emulator/faults")


@pytest.fixture(scope="module")
async def client(emulator: Emulator) -> AsyncIterator[AsyncDaytona]:
    async with opened(emulator) as found:
        yield found


@contextlib.asynccontextmanager
async def opened(emulator: Emulator, key: str = "", **more: Any) -> AsyncIterator[AsyncDaytona]:
    """It polls: by its notifications it keeps connections open past its end, now and then."""
    more = {"use_deprecated_polling": True, **more}
    key = key or emulator.more["api_key"]
    config = DaytonaConfig(api_key=key, api_url=emulator.url, target="us", **more)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        client = AsyncDaytona(config)
    async with client:
        yield client


@pytest.fixture
async def make(emulator: Emulator, client: AsyncDaytona) -> AsyncIterator[Make]:
    """Makes sandboxes, which are deleted with the test."""
    made: list[AsyncSandbox] = []

    async def create(**given: Any) -> AsyncSandbox:
        given = {"snapshot": emulator.more["snapshot"], **given}
        made.append(await client.create(CreateSandboxFromSnapshotParams(**given)))
        return made[-1]

    yield create
    for sandbox in made:
        with contextlib.suppress(errors.DaytonaNotFoundError):
            await sandbox.delete(wait=True)


@pytest.fixture(scope="module")
async def shared(emulator: Emulator, client: AsyncDaytona) -> AsyncIterator[AsyncSandbox]:
    """A running sandbox for tests that change nothing of it."""
    params = CreateSandboxFromSnapshotParams(
        snapshot=emulator.more["snapshot"], env_vars={"OF_THE_BOX": "here"}, auto_stop_interval=0
    )
    sandbox = await client.create(params)
    yield sandbox
    await sandbox.delete(wait=True)


@pytest.fixture(scope="module")
async def served(shared: AsyncSandbox) -> AsyncSandbox:
    """It listens on PORT."""
    await serve_echo(shared)
    return shared


async def serve_echo(sandbox: AsyncSandbox) -> None:
    session = unique()
    await sandbox.process.create_session(session)
    await sandbox.process.execute_session_command(
        session,
        SessionExecuteRequest(command=f"python3 -c {shlex.quote(ECHO)}", run_async=True),
    )
    probe = f"until (exec 3<>/dev/tcp/127.0.0.1/{PORT}) 2>/dev/null; do sleep 0.05; done"
    await sandbox.process.exec(probe, timeout=20)


async def inject(control: httpx.AsyncClient, fault: str, **given: Any) -> None:
    match = {name: given.pop(name) for name in ("method", "path", "sandbox") if name in given}
    body = {"fault": fault, "match": match, **given}
    (await control.post("/_emulator/faults", json=body)).raise_for_status()


async def pull(control: httpx.AsyncClient, lever: str, sandbox: AsyncSandbox) -> None:
    (await control.post(f"/_emulator/{lever}/{sandbox.id}")).raise_for_status()


async def pass_time(control: httpx.AsyncClient, minutes: float) -> None:
    (await control.post("/clock", json={"seconds": minutes * 60})).raise_for_status()


def unique() -> str:
    return f"name-{secrets.token_hex(6)}"


# ---- the control plane ---------------------------------------------------------------------------


async def test_a_wrong_key_is_refused_everywhere(emulator: Emulator, shared: AsyncSandbox) -> None:
    async with opened(emulator, "dtn_other") as stranger:
        with pytest.raises(errors.DaytonaAuthenticationError):
            await stranger.get(shared.id)
        with pytest.raises(errors.DaytonaAuthenticationError):
            await stranger.snapshot.get(emulator.more["snapshot"])
    async with httpx.AsyncClient() as http:
        url = f"{shared.toolbox_proxy_url}/{shared.id}/process/execute"
        headers = {"Authorization": "Bearer dtn_other"}
        assert (await http.post(url, json={"command": "id"}, headers=headers)).status_code == 401


async def test_a_sandbox_is_found_by_id_and_by_name(make: Make, client: AsyncDaytona) -> None:
    name = unique()
    made = await make(name=name, labels={"a": "1"}, os_user="agent", auto_stop_interval=7)
    assert made.state == "started"
    for handle in (made.id, name):
        found = await client.get(handle)
        assert (found.id, found.name, found.user) == (made.id, name, "agent")
        assert found.labels["a"] == "1"
        assert found.auto_stop_interval == 7


async def test_a_name_is_given_once_and_free_again_after_its_sandbox(
    make: Make, client: AsyncDaytona
) -> None:
    name = unique()
    first = await make(name=name)
    with pytest.raises(errors.DaytonaConflictError):
        await make(name=name)
    await first.delete(wait=True)
    assert (await make(name=name)).id != first.id


async def test_of_two_creates_of_one_name_at_once_one_is_a_conflict(make: Make) -> None:
    name = unique()
    ends = await asyncio.gather(make(name=name), make(name=name), return_exceptions=True)
    refused = [type(end) for end in ends if isinstance(end, Exception)]
    assert refused == [errors.DaytonaConflictError]


async def test_a_snapshot_that_is_not_there_is_a_bad_request(make: Make) -> None:
    with pytest.raises(errors.DaytonaBadRequestError, match="not found"):
        await make(snapshot="no-such-snapshot")


async def test_one_sandbox_too_many_is_a_bad_request(
    make: Make, shared: AsyncSandbox, control: httpx.AsyncClient
) -> None:
    (await control.post("/quota", json={"cpu": 1})).raise_for_status()
    with pytest.raises(errors.DaytonaBadRequestError, match="Total CPU limit exceeded"):
        await make()
    (await control.post("/quota", json={"cpu": None})).raise_for_status()
    await make()


async def test_list_is_by_labels_and_goes_over_pages(make: Make, client: AsyncDaytona) -> None:
    mark = unique()
    made = {(await make(labels={"mark": mark, "number": str(n)})).id for n in range(3)}
    query = ListSandboxesQuery(labels={"mark": mark}, limit=2)
    listed = [sandbox.id async for sandbox in client.list(query)]
    assert len(listed) == 3
    assert set(listed) == made
    one = ListSandboxesQuery(labels={"mark": mark, "number": "1"})
    assert len([sandbox async for sandbox in client.list(one)]) == 1


async def test_labels_are_replaced(make: Make, client: AsyncDaytona) -> None:
    sandbox = await make(labels={"old": "1"})
    await sandbox.set_labels({"new": "2"})
    assert (await client.get(sandbox.id)).labels == {"new": "2"}


async def test_a_stopped_sandbox_keeps_its_disk_and_no_process(make: Make) -> None:
    sandbox = await make()
    await sandbox.process.create_session("s")
    await sandbox.process.execute_session_command(
        "s", SessionExecuteRequest(command="sleep 614", run_async=True)
    )
    await sandbox.process.exec("until pgrep -f 'sleep 614'; do sleep 0.05; done", timeout=10)
    await sandbox.fs.upload_file(b"kept", "/home/agent/kept")
    await sandbox.stop()
    assert sandbox.state == "stopped"
    with pytest.raises(errors.DaytonaBadRequestError, match="Is the Sandbox started"):
        await sandbox.process.exec("true")
    await sandbox.start()
    assert sandbox.state == "started"
    assert await sandbox.fs.download_file("/home/agent/kept") == b"kept"
    assert (await sandbox.process.exec("pgrep -f 'sleep 614'")).exit_code == 1
    assert await sandbox.process.list_sessions() == []


async def test_an_archived_sandbox_starts_again(make: Make) -> None:
    sandbox = await make()
    with pytest.raises(errors.DaytonaBadRequestError):
        await sandbox.archive()  # it runs
    await sandbox.fs.upload_file(b"kept", "/home/agent/kept")
    await sandbox.stop()
    await sandbox.archive()
    async with asyncio.timeout(10):
        while sandbox.state != "archived":
            await sandbox.refresh_data()
    await sandbox.start()
    assert await sandbox.fs.download_file("/home/agent/kept") == b"kept"


async def test_a_change_while_another_one_is_under_way_is_a_conflict(
    emulator: Emulator, control: httpx.AsyncClient
) -> None:
    headers = {"Authorization": f"Bearer {emulator.more['api_key']}"}
    async with httpx.AsyncClient(base_url=emulator.url, headers=headers) as http:
        made = (await http.post("/sandbox", json={"snapshot": emulator.more["snapshot"]})).json()
        assert made["state"] == "creating"
        answer = await http.delete(f"/sandbox/{made['id']}")
        assert (answer.status_code, answer.json()["code"]) == (409, "CONFLICT")
        assert (await control.post(f"/_emulator/delete/{made['id']}")).status_code == 204
        assert (await http.get(f"/sandbox/{made['id']}")).status_code == 404


async def test_a_deleted_sandbox_is_not_found_and_its_toolbox_says_401(
    make: Make, client: AsyncDaytona
) -> None:
    sandbox = await make()
    other = await client.get(sandbox.id)
    await sandbox.delete(wait=True)
    assert sandbox.state == "destroyed"
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.get(sandbox.id)
    with pytest.raises(errors.DaytonaNotFoundError):
        await other.delete()
    with pytest.raises(errors.DaytonaAuthenticationError):
        await other.process.exec("true")
    with pytest.raises(errors.DaytonaError, match="401"):
        await other.fs.upload_file(b"", "/tmp/a")
    with pytest.raises(errors.DaytonaError, match="401"):
        await other.fs.download_file("/tmp/a")


async def test_an_sdk_that_listens_hears_of_changes_by_others(
    emulator: Emulator, make: Make
) -> None:
    sandbox = await make()
    async with opened(emulator, use_deprecated_polling=False) as listening:
        heard = await listening.get(sandbox.id)
        async with asyncio.timeout(10):
            while (
                listening._event_dispatcher is None or not listening._event_dispatcher.is_connected
            ):
                await asyncio.sleep(0.02)
        await sandbox.stop()
        async with asyncio.timeout(10):
            while heard.state != "stopped":  # it asks for nothing
                await asyncio.sleep(0.02)


# ---- leases --------------------------------------------------------------------------------------


async def test_an_idle_sandbox_is_stopped_unless_its_activity_is_refreshed(
    make: Make, control: httpx.AsyncClient
) -> None:
    kept, idle, forever = [await make(auto_stop_interval=n) for n in (10, 10, 0)]
    await pass_time(control, 9)
    await kept.refresh_activity()
    await pass_time(control, 9)
    for sandbox, state in ((kept, "started"), (idle, "stopped"), (forever, "started")):
        await sandbox.refresh_data()
        assert sandbox.state == state


async def test_a_command_is_activity_and_a_preview_is_not(
    make: Make, control: httpx.AsyncClient
) -> None:
    busy, watched = [await make(auto_stop_interval=10) for _ in range(2)]
    link = await watched.get_preview_link(PORT)
    await pass_time(control, 9)
    await busy.process.exec("true")
    answer = await control.get(link.url, headers={TOKEN: link.token})
    assert answer.status_code == 502  # it was carried into the box
    await pass_time(control, 9)
    for sandbox, state in ((busy, "started"), (watched, "stopped")):
        await sandbox.refresh_data()
        assert sandbox.state == state


async def test_a_stopped_sandbox_is_deleted_after_its_time(
    make: Make, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    sandbox = await make(auto_stop_interval=0, auto_delete_interval=30)
    await pass_time(control, 60)  # it runs
    await sandbox.stop()
    await pass_time(control, 29)
    await sandbox.refresh_data()
    assert sandbox.state == "stopped"
    await pass_time(control, 2)
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.get(sandbox.id)


async def test_an_ephemeral_sandbox_is_deleted_by_its_stop(
    make: Make, client: AsyncDaytona
) -> None:
    sandbox = await make(ephemeral=True)
    await sandbox.stop()
    assert sandbox.state == "destroyed"
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.get(sandbox.id)


async def test_a_time_to_live_ends_it_however_busy(
    make: Make, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    sandbox = await make(auto_stop_interval=0, ttl_minutes=20)
    await pass_time(control, 15)
    await sandbox.set_ttl(20)
    await pass_time(control, 15)
    await sandbox.refresh_activity()
    await pass_time(control, 6)
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.get(sandbox.id)


async def test_the_levers_stop_and_delete(
    make: Make, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    sandbox = await make()
    await pull(control, "expire", sandbox)
    await sandbox.refresh_data()
    assert sandbox.state == "stopped"
    await pull(control, "delete", sandbox)
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.get(sandbox.id)
    assert (await control.post(f"/_emulator/delete/{sandbox.id}")).status_code == 404


async def test_a_broken_sandbox_is_recovered_where_it_can_be(
    make: Make, control: httpx.AsyncClient
) -> None:
    sandbox = await make()
    await sandbox.fs.upload_file(b"kept", "/home/agent/kept")
    with pytest.raises(errors.DaytonaBadRequestError):
        await sandbox.recover()  # it is well
    for recoverable in (True, False):
        broken = await control.post(f"/break/{sandbox.id}", json={"recoverable": recoverable})
        broken.raise_for_status()
        await sandbox.refresh_data()
        assert (sandbox.state, sandbox.recoverable) == ("error", recoverable)
        with pytest.raises(errors.DaytonaBadRequestError):
            await sandbox.start()
        if recoverable:
            await sandbox.recover()
            assert await sandbox.fs.download_file("/home/agent/kept") == b"kept"
    with pytest.raises(errors.DaytonaBadRequestError):
        await sandbox.recover()


# ---- commands and sessions -----------------------------------------------------------------------


async def test_exec_gives_both_outputs_and_the_exit_code(shared: AsyncSandbox) -> None:
    command = 'echo "$OF_THE_BOX $MINE"; pwd; id -un; echo err >&2; exit 3'
    result = await shared.process.exec(command, cwd="/tmp", env={"MINE": "too"})
    assert (result.exit_code, result.result) == (3, "here too\n/tmp\nagent\nerr\n")


async def test_exec_has_a_timeout_that_kills(shared: AsyncSandbox) -> None:
    started = time.monotonic()
    with pytest.raises(errors.DaytonaProcessExecutionTimeoutError):
        await shared.process.exec("sleep 611 & sleep 612", timeout=1)
    assert time.monotonic() - started < 10
    assert (await shared.process.exec("pgrep -f 'sleep 61[12]'")).exit_code == 1


async def test_commands_of_a_session_share_its_shell(shared: AsyncSandbox) -> None:
    session = unique()
    await shared.process.create_session(session)
    with pytest.raises(errors.DaytonaConflictError):
        await shared.process.create_session(session)
    first = await shared.process.execute_session_command(
        session, SessionExecuteRequest(command="cd /tmp; V='it''s'; echo out; echo err >&2")
    )
    assert (first.exit_code, first.stdout, first.stderr) == (0, "out\n", "err\n")
    second = await shared.process.execute_session_command(
        session, SessionExecuteRequest(command='pwd\nprintf "$V"; (exit 4)')
    )
    assert (second.exit_code, second.stdout) == (4, "/tmp\nits")
    shown = await shared.process.get_session(session)
    assert [command.exit_code for command in shown.commands] == [0, 4]
    await shared.process.delete_session(session)
    with pytest.raises(errors.DaytonaNotFoundError):
        await shared.process.get_session(session)


async def test_a_background_command_has_logs_and_input(shared: AsyncSandbox) -> None:
    session = unique()
    await shared.process.create_session(session)
    began = await shared.process.execute_session_command(
        session,
        SessionExecuteRequest(
            command="echo ready; read line; echo got $line; echo bad >&2; exit 5",
            run_async=True,
            suppress_input_echo=True,
        ),
    )
    assert began.exit_code is None
    async with asyncio.timeout(10):
        while (await logs(shared, session, began.cmd_id))[0] != "ready\n":
            await asyncio.sleep(0.02)
    running = await shared.process.get_session_command(session, began.cmd_id)
    assert running.exit_code is None
    await shared.process.send_session_command_input(session, began.cmd_id, "it\n")
    out: list[str] = []
    err: list[str] = []
    await shared.process.get_session_command_logs_async(
        session, began.cmd_id, out.append, err.append
    )
    assert ("".join(out), "".join(err)) == ("ready\ngot it\n", "bad\n")
    assert await logs(shared, session, began.cmd_id) == ("ready\ngot it\n", "bad\n")
    ended = await shared.process.get_session_command(session, began.cmd_id)
    assert ended.exit_code == 5
    with pytest.raises(errors.DaytonaSessionEndedError):  # `exit` ended its shell
        await shared.process.execute_session_command(session, SessionExecuteRequest(command="true"))


async def logs(sandbox: AsyncSandbox, session: str, command: str) -> tuple[str | None, str | None]:
    found = await sandbox.process.get_session_command_logs(session, command)
    return found.stdout, found.stderr


async def test_deleting_a_session_ends_what_it_runs(shared: AsyncSandbox) -> None:
    session = unique()
    await shared.process.create_session(session)
    await shared.process.execute_session_command(
        session, SessionExecuteRequest(command="sleep 613", run_async=True)
    )
    await shared.process.exec("until pgrep -f 'sleep 613'; do sleep 0.05; done", timeout=10)
    await shared.process.delete_session(session)
    assert (await shared.process.exec("pgrep -x -f 'sleep 613'")).exit_code == 1


# ---- files ---------------------------------------------------------------------------------------


async def test_files_are_uploaded_and_downloaded_as_they_are(shared: AsyncSandbox) -> None:
    data = bytes(range(256)) * 8000
    path = f"/tmp/{unique()}/of a folder/ä.bin"
    await shared.fs.upload_file(data, path)
    assert await shared.fs.download_file(path) == data


async def test_an_upload_keeps_the_mode_of_a_file(shared: AsyncSandbox) -> None:
    path = f"/tmp/{unique()}"
    await shared.fs.upload_file(b"1", path)
    assert (await shared.process.exec(f"stat -c '%a %U' {path}")).result == "644 agent\n"
    await shared.fs.set_file_permissions(path, mode="600")
    await shared.fs.upload_file(b"2", path)
    assert (await shared.process.exec(f"stat -c %a {path}; cat {path}")).result == "600\n2"


async def test_files_that_cannot_be_read_are_told_apart(shared: AsyncSandbox) -> None:
    with pytest.raises(errors.DaytonaFileNotFoundError):
        await shared.fs.download_file("/nothing/here")
    closed = f"/tmp/{unique()}"
    await shared.process.exec(f"touch {closed}; chmod 0 {closed}")
    with pytest.raises(errors.DaytonaFileAccessDeniedError):
        await shared.fs.download_file(closed)
    with pytest.raises(errors.DaytonaInvalidFilePathError):
        await shared.fs.download_file("/etc")
    with pytest.raises(errors.DaytonaError, match="400"):
        await shared.fs.upload_file(b"", "/etc/not-mine")


async def test_folders_are_made_and_removed(shared: AsyncSandbox) -> None:
    path = f"/tmp/{unique()}"
    await shared.fs.create_folder(path, "750")
    assert (await shared.process.exec(f"stat -c %a {path}")).result == "750\n"
    await shared.fs.delete_file(path, recursive=True)
    assert (await shared.process.exec(f"test -e {path}")).exit_code == 1


# ---- previews ------------------------------------------------------------------------------------


async def test_a_preview_is_for_who_has_the_token_or_the_key(
    emulator: Emulator, served: AsyncSandbox
) -> None:
    link = await served.get_preview_link(PORT)
    key = {"Authorization": f"Bearer {emulator.more['api_key']}"}
    async with httpx.AsyncClient() as http:
        for headers in ({}, {TOKEN: "other"}, {"Authorization": "Bearer other"}):
            assert (await http.get(f"{link.url}/a", headers=headers)).status_code == 401
        for headers in ({TOKEN: link.token}, key):
            answer = await http.get(f"{link.url}/a%20b?c=d", headers=headers)
            assert (answer.status_code, answer.text.splitlines()[0]) == (200, "/a%20b?c=d")
            for secret in headers.values():
                assert secret not in answer.text
        posted = await http.post(link.url, content=b"x" * 100_000, headers={TOKEN: link.token})
        assert (posted.status_code, len(posted.content)) == (201, 100_000)


async def test_an_authorization_of_the_boxs_own_goes_through(served: AsyncSandbox) -> None:
    link = await served.get_preview_link(PORT)
    headers = {TOKEN: link.token, "Authorization": "Bearer for-the-box"}
    async with httpx.AsyncClient() as http:
        assert "Bearer for-the-box" in (await http.get(link.url, headers=headers)).text


async def test_a_signed_preview_needs_no_header_until_it_expires(
    served: AsyncSandbox, control: httpx.AsyncClient
) -> None:
    one, two = [await served.create_signed_preview_url(PORT, 600) for _ in range(2)]
    assert (await control.get(f"{one.url}/a")).text.splitlines()[0] == "/a"
    await served.expire_signed_preview_url(PORT, one.token)
    assert (await control.get(f"{one.url}/a")).status_code == 307
    await pass_time(control, 11)
    assert (await control.get(f"{two.url}/a")).status_code == 307


async def test_a_preview_streams(served: AsyncSandbox) -> None:
    link = await served.get_preview_link(PORT)
    started = time.monotonic()
    async with (
        httpx.AsyncClient(headers={TOKEN: link.token}) as http,
        http.stream("GET", f"{link.url}/drip") as answer,
    ):
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(3)] == ["0", "1", "2"]
    assert time.monotonic() - started < 20, "it waited for the whole answer"


async def test_every_start_makes_a_new_preview_token(make: Make) -> None:
    sandbox = await make()
    before = await sandbox.get_preview_link(PORT)
    await sandbox.stop()
    async with httpx.AsyncClient() as http:
        stopped = await http.get(before.url, headers={TOKEN: before.token})
        assert stopped.status_code == 400
        await sandbox.start()
        await serve_echo(sandbox)
        after = await sandbox.get_preview_link(PORT)
        assert after.url == before.url
        assert (await http.get(before.url, headers={TOKEN: before.token})).status_code == 401
        assert (await http.get(after.url, headers={TOKEN: after.token})).status_code == 200


async def test_the_preview_of_a_deleted_sandbox_leads_to_a_login_page(make: Make) -> None:
    sandbox = await make()
    link = await sandbox.get_preview_link(PORT)
    await sandbox.delete(wait=True)
    async with httpx.AsyncClient(headers={TOKEN: link.token}) as http:
        answer = await http.get(link.url)
        assert answer.status_code == 307
        assert (await http.get(answer.headers["location"])).status_code == 200


async def test_who_stops_the_daemon_of_a_box_cuts_off_its_previews(
    make: Make, control: httpx.AsyncClient
) -> None:
    sandbox = await make()
    await serve_echo(sandbox)
    link = await sandbox.get_preview_link(PORT)
    headers = {TOKEN: link.token}
    assert (await control.get(link.url, headers=headers)).status_code == 200
    await sandbox.process.exec("pkill -STOP -f serve_forever")
    with pytest.raises(httpx.ReadTimeout):
        await control.get(link.url, headers=headers, timeout=1)
    await sandbox.process.exec("pkill -CONT -f serve_forever")
    assert (await control.get(link.url, headers=headers)).status_code == 200


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        ("401", errors.DaytonaAuthenticationError),
        ("429", errors.DaytonaRateLimitError),
        ("503", errors.DaytonaServiceUnavailableError),
    ],
)
async def test_a_refusal_is_the_sdks_own_error(
    fault: str,
    raised: type[Exception],
    shared: AsyncSandbox,
    client: AsyncDaytona,
    control: httpx.AsyncClient,
) -> None:
    await inject(control, fault, method="GET", sandbox=shared.id, path="^/api/")
    with pytest.raises(raised):
        await client.get(shared.id)
    assert (await client.get(shared.id)).id == shared.id
    await inject(control, fault, path="/toolbox/.*/process/execute")
    with pytest.raises(raised):
        await shared.process.exec("true")


async def test_a_reset_is_retried_by_the_sdk_for_a_look_up_and_not_for_a_create(
    make: Make, shared: AsyncSandbox, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    await inject(control, "reset", method="GET", sandbox=shared.id, times=2)
    assert (await client.get(shared.id)).id == shared.id
    await inject(control, "reset", method="POST", path="^/api/sandbox$")
    with pytest.raises(errors.DaytonaConnectionError):
        await make()


async def test_an_answer_that_is_lost_is_one_to_a_sandbox_that_is_there(
    make: Make, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    name = unique()
    await inject(control, "lose", method="POST", path="^/api/sandbox$")
    with pytest.raises(errors.DaytonaConnectionError):
        await make(name=name)
    found = await client.get(name)
    await found.wait_for_sandbox_start()
    await found.delete(wait=True)


async def test_a_hanging_look_up_ends_with_its_timeout(
    shared: AsyncSandbox, client: AsyncDaytona, control: httpx.AsyncClient
) -> None:
    await inject(control, "hang", method="GET", sandbox=shared.id)
    with pytest.raises(errors.DaytonaTimeoutError):
        await client.get(shared.id, request_timeout=1)


# ---- snapshots -----------------------------------------------------------------------------------


async def test_a_snapshot_is_built_once_and_makes_sandboxes(
    make: Make, client: AsyncDaytona
) -> None:
    name = unique()
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.snapshot.get(name)
    said: list[str] = []
    params = CreateSnapshotParams(name=name, image=Image.base("debian:trixie"))
    built = await client.snapshot.create(params, on_logs=said.append)
    assert (built.name, built.state) == (name, "active")
    assert any("FROM debian:trixie" in line for line in said)
    with pytest.raises(errors.DaytonaConflictError):
        await client.snapshot.create(params)
    assert name in [each.name for each in (await client.snapshot.list()).items]
    assert (await make(snapshot=name)).snapshot == name
    await client.snapshot.delete(name)
    with pytest.raises(errors.DaytonaNotFoundError):
        await client.snapshot.get(name)
