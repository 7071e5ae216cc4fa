"""boxd's one port: who may ask, how it answers, and what becomes of who hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from emulators.boxes import Box, BoxProcess
from sidecar.providers.base import Endpoint
from sidecar.providers.boxd import NoAnswer
from sidecar.providers.boxd_answers import Refused
from sidecar.providers.boxd_http import TARGET_HEADER, TOKEN_HEADER, ByHttp
from sidecar.providers.cloud import BOXD_COMMAND, TOKEN_FILE
from tests.integration.boxd.conftest import Boxd, put_token, started
from tests.support.emulators.in_box import WITHIN, processes, python, run, wait

AGENT = {TARGET_HEADER: "agent"}
# Answers what it was asked, an event at a time: the next one when the last has been seen.
AGENT_SERVER = """
import http.server, json, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        told = {"path": self.path, "body": body.decode(), "headers": dict(self.headers.items())}
        answer = json.dumps(told).encode()
        self.send_response(202)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            for number in range(3):
                while not os.path.exists("/tmp/go-%d" % number):
                    self.wfile.write(b": waiting\\n\\n")
                    time.sleep(0.02)
                self.wfile.write(b"data: %d\\n\\n" % number)
        except BrokenPipeError:
            open("/tmp/hung-up", "w").close()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 2468), Handler)
print("ready")
server.serve_forever()
"""


@pytest.fixture
async def http(shared: Boxd) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=shared.url, timeout=WITHIN, trust_env=False) as client:
        yield client


@pytest.fixture
async def agent(box: Box) -> AsyncIterator[BoxProcess]:
    """What stands at sandbox-agent's port."""
    server = await python(box, AGENT_SERVER)
    yield server
    await server.kill()
    await run(box, "sh", "-c", "rm -f /tmp/go-* /tmp/hung-up")


def call(op: str, body: bytes = b"", **fields: object) -> bytes:
    return json.dumps({"op": op, **fields}).encode() + b"\n" + body


def exec_of(*argv: str, stdin: bytes = b"") -> bytes:
    return call("exec", stdin, argv=argv, cwd="/", env={}, timeout=60)


async def naps(boxd: Boxd, argument: str) -> bool:
    return f"sleep {argument}" in await boxd.running()


async def until_napping(boxd: Boxd, argument: str, *, there: bool = True) -> None:
    async with asyncio.timeout(WITHIN):
        while await naps(boxd, argument) is not there:
            await asyncio.sleep(0.02)


# ---- who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "", "wrong", "short"])
@pytest.mark.parametrize("target", [{}, AGENT], ids=["boxd", "agent"])
async def test_without_its_token_nothing_is_done(
    shared: Boxd,
    http: httpx.AsyncClient,
    agent: BoxProcess,
    given: str | None,
    target: dict[str, str],
) -> None:
    headers = {TOKEN_HEADER: shared.token[:-1] if given == "short" else given or ""}
    if given is None:
        headers = {}
    mark = f"/tmp/{secrets.token_hex(4)}"
    answer = await http.post("/call", content=exec_of("touch", mark), headers=headers | target)
    assert (answer.status_code, answer.content) == (401, b"")
    assert (await run(shared.box, "ls", mark)).exit_code != 0
    assert (await http.get("/", headers=headers | target)).status_code == 401


async def test_a_token_is_no_help_in_another_header(shared: Boxd, http: httpx.AsyncClient) -> None:
    given = {"authorization": f"Bearer {shared.token}"}
    assert (await http.post("/call", content=exec_of("true"), headers=given)).status_code == 401
    params = {"token": shared.token}
    assert (await http.post("/call", content=exec_of("true"), params=params)).status_code == 401


async def test_with_its_token_boxd_and_the_agent_answer(
    shared: Boxd, http: httpx.AsyncClient, agent: BoxProcess
) -> None:
    assert await shared.exec("echo", "here") == (0, b"here\n")
    answer = await http.post("/any?q=1", content=b"body", headers=shared.headers | AGENT)
    assert answer.status_code == 202
    assert answer.json()["path"] == "/any?q=1"


async def test_the_token_file_is_gone_and_the_token_is_nowhere_to_be_read(shared: Boxd) -> None:
    assert (await run(shared.box, "ls", TOKEN_FILE)).exit_code != 0
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    seen = (await run(shared.box, "sh", "-c", f"A_DECOY=seen; export A_DECOY; {look}")).stdout
    assert "over_http.BEAT_SECONDS" in seen, "the search is blind"
    assert shared.token not in seen
    pid = (await processes(shared.box, "[/]opt/holdfast/boxd"))[-1]
    # its memory is not to be had either: what looks is the same user
    assert (await run(shared.box, "cat", f"/proc/{pid}/environ")).exit_code != 0


async def test_without_a_token_boxd_does_not_start(other_box: Box) -> None:
    missing = await other_box.exec(BOXD_COMMAND)
    assert await wait(missing) != 0
    await put_token(other_box, "", "agent")
    empty = await other_box.exec(BOXD_COMMAND)
    assert await wait(empty) != 0
    assert b"is empty" in await empty.stderr.read()
    with pytest.raises(ConnectionRefusedError):
        await other_box.connect(2469)


async def test_started_as_root_it_is_the_agents_user(other_box: Box) -> None:
    async with started(other_box, user="root") as boxd:
        _, output = await boxd.exec("id")
        assert output == b"uid=1000(agent) gid=1000(agent) groups=1000(agent)\n"
        assert (await run(other_box, "ls", TOKEN_FILE, user="root")).exit_code != 0


# ---- what it is asked, and what not --------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/call", b"", 404),
        ("POST", "/other", exec_of("true"), 404),
        ("POST", "/call", b"nonsense", 400),
        ("POST", "/call", b"[]\n", 400),
        ("POST", "/call", b"", 400),
        # it would end with any proxy's connection
        ("POST", "/call", call("freeze"), 400),
    ],
)
async def test_what_is_not_for_it_is_refused(
    shared: Boxd, http: httpx.AsyncClient, method: str, path: str, body: bytes, status: int
) -> None:
    answer = await http.request(method, path, content=body, headers=shared.headers)
    assert (answer.status_code, answer.content) == (status, b"")


async def test_what_it_does_not_know_is_said_and_not_an_end(shared: Boxd) -> None:
    wrong: dict[str, dict[str, Any]] = {"nothing": {}, "exec": {}, "read": {"path": 5}}
    for op, fields in wrong.items():
        with pytest.raises(Refused):
            await shared.link.call(op, **fields)
    with pytest.raises((Refused, NoAnswer)):
        await shared.link.call("unpack", b"no tar at all")
    assert (await shared.link.call("mounted"))[0]["mounted"] is False


@pytest.mark.parametrize(
    "lines",
    [
        b"nonsense\r\n\r\n",
        b"POST /call HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /call HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /call HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /call HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"POST /call HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
    ],
)
async def test_what_is_no_request_is_answered_and_the_connection_closed(
    shared: Boxd, lines: bytes
) -> None:
    named = b"\r\n" + f"{TOKEN_HEADER}: {shared.token}".encode() + b"\r\n"
    reader, writer = await shared.connect()
    writer.write(lines.replace(b"\r\n", named, 1))
    async with asyncio.timeout(WITHIN):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_body_in_chunks_arrives_whole(shared: Boxd) -> None:
    """As a proxy sends it that does not pass a length on."""
    data = secrets.token_bytes(300_000)
    body = exec_of("cat", stdin=data)
    reader, writer = await shared.connect()
    head = f"POST /call HTTP/1.1\r\n{TOKEN_HEADER}: {shared.token}\r\n"
    writer.write(f"{head}Transfer-Encoding: Chunked\r\n\r\n".encode())
    cuts = [0, 1, 20, 100_000, len(body)]
    for start, end in itertools.pairwise(cuts):
        writer.write(b"%X;name=value\r\n%s\r\n" % (end - start, body[start:end]))
        await writer.drain()
    writer.write(b"0\r\nA-Trailer: of no interest\r\n\r\n")
    async with asyncio.timeout(WITHIN):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert data[:60_000] in answer  # within one chunk of the answer
    assert answer.endswith(b"\r\n0\r\n\r\n")
    writer.close()


async def test_bytes_of_any_kind_and_number_come_back_as_they_were(shared: Boxd) -> None:
    data = b"\n\n\n" + secrets.token_bytes(20 << 20) + b"\n"
    assert await shared.exec("cat", stdin=data) == (0, data)


async def test_heartbeats_come_before_an_answer_and_are_no_part_of_it(
    shared: Boxd, http: httpx.AsyncClient
) -> None:
    slow = ["sh", "-c", "sleep 0.5; printf '\\n\\n{}\\n'; printf '\\nerr' >&2; exit 7"]
    request: dict[str, Any] = {"argv": slow, "cwd": "/", "env": {}, "timeout": 60}
    head, output = await shared.link.call("exec", **request)
    assert (head["exit_code"], head["stdout"], output) == (7, 5, b"\n\n{}\n\nerr")
    answer = await http.post("/call", content=call("exec", **request), headers=shared.headers)
    beats = len(answer.content) - len(answer.content.lstrip(b"\n"))
    assert beats >= 5, "there was none to be disturbed by"
    assert answer.content[beats:].startswith(b'{"exit_code": 7')


async def test_many_at_once_get_their_own_answers(shared: Boxd) -> None:
    texts = [secrets.token_hex(1000).encode() for _ in range(12)]
    answers = await asyncio.gather(*(shared.exec("cat", stdin=text) for text in texts))
    assert [output for _, output in answers] == texts


# ---- who hangs up --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_who_hangs_up_takes_the_command_with_all_its_children_along(
    shared: Boxd, how: str
) -> None:
    nap = str(secrets.randbelow(10_000) + 10_000)
    body = exec_of("sh", "-c", f"trap '' TERM HUP; (setsid sleep {nap} &); sleep {nap}")
    reader, writer = await shared.connect()
    head = f"POST /call HTTP/1.1\r\n{TOKEN_HEADER}: {shared.token}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await until_napping(shared, nap)
    if how == "half":
        writer.write_eof()  # an end of file is all that a proxy may pass on
    elif how == "reset":
        writer.transport.abort()
    else:
        writer.close()
    await until_napping(shared, nap, there=False)
    if how == "half":
        async with asyncio.timeout(WITHIN):
            answer = await reader.read()
        assert b"exit_code" not in answer, "it is told of an end that it did not wait for"
        writer.close()


async def test_who_hangs_up_in_the_middle_of_a_request_leaves_nothing(shared: Boxd) -> None:
    mark = f"/tmp/{secrets.token_hex(4)}"
    body = exec_of("touch", mark)
    _, writer = await shared.connect()
    head = f"POST /call HTTP/1.1\r\n{TOKEN_HEADER}: {shared.token}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
    await writer.drain()
    writer.close()
    assert await shared.exec("true") == (0, b"")
    assert (await run(shared.box, "ls", mark)).exit_code != 0


async def test_a_call_that_is_given_up_leaves_no_process(shared: Boxd) -> None:
    nap = str(secrets.randbelow(10_000) + 20_000)
    running = asyncio.ensure_future(shared.exec("sleep", nap, bound=None))
    await until_napping(shared, nap)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_napping(shared, nap, there=False)


async def test_an_answer_that_does_not_come_in_time_is_no_answer(shared: Boxd) -> None:
    nap = str(secrets.randbelow(10_000) + 30_000)
    with pytest.raises(NoAnswer, match="no answer to exec"):
        await shared.exec("sleep", nap, bound=0.5)
    await until_napping(shared, nap, there=False)


# ---- sandbox-agent, by the same port -------------------------------------------------------------


async def test_the_agents_answer_streams_event_by_event(
    shared: Boxd, http: httpx.AsyncClient, agent: BoxProcess
) -> None:
    async with http.stream("GET", "/events", headers=shared.headers | AGENT) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        for number in range(3):
            # the next one is sent when we have seen the last
            await shared.link.call("write", path=f"/tmp/go-{number}", mode=0o600)
            async with asyncio.timeout(WITHIN):
                while (line := await anext(lines)) != f"data: {number}":
                    assert not line.startswith("data:")
        async with asyncio.timeout(WITHIN):
            assert [line async for line in lines if line.startswith("data")] == []


async def test_who_leaves_the_agents_stream_ends_it_there_too(
    shared: Boxd, http: httpx.AsyncClient, agent: BoxProcess
) -> None:
    async with http.stream("GET", "/events", headers=shared.headers | AGENT) as answer:
        assert await anext(answer.aiter_lines()) == ": waiting"
    async with asyncio.timeout(WITHIN):
        while (await run(shared.box, "ls", "/tmp/hung-up")).exit_code != 0:
            await asyncio.sleep(0.05)


async def test_the_agent_gets_the_request_as_it_was_and_not_boxds_token(
    shared: Boxd, http: httpx.AsyncClient, agent: BoxProcess
) -> None:
    async def in_chunks() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    headers = {**shared.headers, **AGENT, "Authorization": "Bearer of-the-agent", "X-Own": "1"}
    answer = await http.post("/v1/x?y=%20z", content=in_chunks(), headers=headers)
    told = answer.json()
    assert (told["path"], told["body"]) == ("/v1/x?y=%20z", "one two")
    arrived = {name.lower(): value for name, value in told["headers"].items()}
    assert (arrived["authorization"], arrived["x-own"]) == ("Bearer of-the-agent", "1")
    assert {TOKEN_HEADER.lower(), TARGET_HEADER.lower(), "transfer-encoding"}.isdisjoint(arrived)
    assert shared.token not in str(arrived)


async def test_an_agent_that_is_not_there_is_a_502(shared: Boxd, http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/health", headers=shared.headers | AGENT)
    assert answer.status_code == 502


async def test_nobody_there_is_no_answer(shared: Boxd) -> None:
    with contextlib.closing(await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1")) as s:
        port = s.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer):
            await ByHttp(Endpoint(f"http://127.0.0.1:{port}"), shared.token).call("mounted")
    with pytest.raises(NoAnswer, match="answers 401"):
        await ByHttp(Endpoint(shared.url), "another").call("mounted")
