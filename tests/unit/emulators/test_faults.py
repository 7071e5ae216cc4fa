"""Every fault, as a client meets it, over HTTP and over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpclib.client
import grpclib.server
import httpx
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.health.v1.health_grpc import HealthBase, HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from emulators.faults import Fault, Faults, Faulty, Match
from emulators.http_server import http_server, listening
from emulators.rpc_faults import inject
from tests.support.services import until

SERVING = HealthCheckResponse.ServingStatus.SERVING


@dataclass
class Cloud:
    """A service that counts what it carries out, and what the levers were pulled for."""

    carried_out: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    async def work(self, request: Request) -> Response:
        body = await request.body()
        self.carried_out.append(request.url.path)
        return PlainTextResponse(b"done " + body)

    async def expire(self, sandbox: str) -> bool:
        self.expired.append(sandbox)
        return sandbox == "box"

    async def delete(self, sandbox: str) -> bool:
        self.deleted.append(sandbox)
        return sandbox == "box"


def sandbox_of(scope: Scope) -> str | None:
    header: bytes | None = dict(scope["headers"]).get(b"x-sandbox")
    return None if header is None else header.decode()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
async def http(cloud: Cloud) -> AsyncIterator[httpx.AsyncClient]:
    app = Faulty(
        Starlette(routes=[Route("/{path:path}", cloud.work, methods=["GET", "POST"])]),
        Faults(),
        cloud,
        sandbox_of=sandbox_of,
        refusal=lambda status: {"vendor": status},
    )
    async with (
        http_server(app, "127.0.0.1") as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


async def add(http: httpx.AsyncClient, fault: str, **given: Any) -> None:
    answer = await http.post("/_emulator/faults", json={"fault": fault, **given})
    assert answer.status_code == 204, answer.text


async def hits(http: httpx.AsyncClient) -> list[int]:
    return [each["hits"] for each in (await http.get("/_emulator/faults")).json()]


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_refusal_is_the_vendors_and_nothing_is_carried_out(
    http: httpx.AsyncClient, cloud: Cloud, status: int
) -> None:
    await add(http, str(status))
    refused = await http.post("/a", content=b"x" * 1_000_000)
    assert (refused.status_code, refused.json()) == (status, {"vendor": status})
    assert cloud.carried_out == []
    assert (await http.post("/a", content=b"again")).text == "done again"


async def test_a_fault_is_met_as_often_as_it_says(http: httpx.AsyncClient) -> None:
    await add(http, "503", times=2)
    await add(http, "429")
    statuses = [(await http.get("/a")).status_code for _ in range(4)]
    assert statuses == [503, 503, 429, 200]
    assert await hits(http) == [2, 1]


async def test_a_fault_without_a_number_stays_until_it_is_deleted(http: httpx.AsyncClient) -> None:
    await add(http, "503", times=None)
    assert [(await http.get("/a")).status_code for _ in range(5)] == [503] * 5
    assert (await http.delete("/_emulator/faults")).status_code == 204
    assert (await http.get("/a")).status_code == 200
    assert await hits(http) == []


@pytest.mark.parametrize(
    ("match", "meets", "passes"),
    [
        ({"method": "post"}, ("POST", "/a", ""), ("GET", "/a", "")),
        ({"path": "^/v2/boxes/[0-9]+$"}, ("GET", "/v2/boxes/12", ""), ("GET", "/v2/boxes/x", "")),
        ({"path": "pause"}, ("POST", "/boxes/1/pause", ""), ("POST", "/boxes/1", "")),
        ({"sandbox": "one"}, ("GET", "/a", "one"), ("GET", "/a", "two")),
        ({"sandbox": "one", "method": "GET"}, ("GET", "/a", "one"), ("POST", "/a", "one")),
        ({}, ("GET", "/anything", "any"), ("GET", "/_emulator/faults", "")),
    ],
)
async def test_a_fault_is_met_only_by_what_it_matches(
    http: httpx.AsyncClient,
    match: dict[str, str],
    meets: tuple[str, str, str],
    passes: tuple[str, str, str],
) -> None:
    await add(http, "503", match=match, times=None)
    for (method, path, sandbox), expected in ((meets, 503), (passes, 200)):
        headers = {"x-sandbox": sandbox} if sandbox else {}
        assert (await http.request(method, path, headers=headers)).status_code == expected


async def test_a_reset_carries_nothing_out_and_answers_nothing(
    http: httpx.AsyncClient, cloud: Cloud
) -> None:
    await add(http, "reset")
    with pytest.raises(httpx.ReadError):
        await http.post("/a", content=b"x")
    assert cloud.carried_out == []
    assert (await http.get("/a")).status_code == 200


async def test_a_lost_answer_is_to_something_that_was_carried_out(
    http: httpx.AsyncClient, cloud: Cloud
) -> None:
    await add(http, "lose")
    with pytest.raises(httpx.ReadError):
        await http.post("/lost", content=b"x")
    assert cloud.carried_out == ["/lost"]


async def test_a_hanging_request_gets_no_answer_and_is_not_carried_out(
    http: httpx.AsyncClient, cloud: Cloud
) -> None:
    await add(http, "hang")
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/a", content=b"x", timeout=0.3)
    assert cloud.carried_out == []
    assert await hits(http) == [1]


async def test_a_hang_that_is_over_is_a_reset(http: httpx.AsyncClient, cloud: Cloud) -> None:
    await add(http, "hang", seconds=3600)
    with pytest.raises(httpx.ReadTimeout):
        await http.get("/a", timeout=0.1)
    await add(http, "hang", seconds=0.2)
    with pytest.raises(httpx.ReadError):
        await http.get("/a")
    assert cloud.carried_out == []


async def test_a_delayed_request_is_answered_late(http: httpx.AsyncClient, cloud: Cloud) -> None:
    await add(http, "delay", seconds=3600)
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/a", content=b"x", timeout=0.1)
    assert cloud.carried_out == []
    await add(http, "delay", seconds=0.1)
    assert (await http.post("/a", content=b"x")).text == "done x"
    assert cloud.carried_out == ["/a"]


async def test_a_delayed_request_is_carried_out_although_its_client_has_left(
    http: httpx.AsyncClient, cloud: Cloud
) -> None:
    await add(http, "delay", seconds=0.3)
    with pytest.raises(httpx.ReadTimeout):
        await http.get("/late", timeout=0.1)
    await until(lambda: cloud.carried_out == ["/late"], "the request is carried out")


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense",
        b'{"fault": "404"}',
        b'{"fault": "503", "times": 0}',
        b'{"fault": "delay", "seconds": -1}',
        b'{"fault": "503", "match": {"path": "("}}',
        b'{"fault": "503", "match": {"sandbx": "typo"}}',
        b'{"fault": "503", "unknown": 1}',
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    assert (await http.post("/_emulator/faults", content=body)).status_code == 400
    assert await hits(http) == []


async def test_the_levers_reach_the_emulator_and_tell_when_there_is_no_such_sandbox(
    http: httpx.AsyncClient, cloud: Cloud
) -> None:
    await add(http, "503", times=None)  # the control plane of the emulator meets no fault
    for lever, pulled in (("expire", cloud.expired), ("delete", cloud.deleted)):
        assert (await http.post(f"/_emulator/{lever}/box")).status_code == 204
        assert (await http.post(f"/_emulator/{lever}/none")).status_code == 404
        assert pulled == ["box", "none"]


async def test_a_server_ends_at_once_whatever_its_clients_do(cloud: Cloud) -> None:
    faults = Faults()
    faults.add(Fault(fault="hang", times=None))
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        async with http_server(Faulty(None, faults, cloud), "127.0.0.1") as url:
            asked = asyncio.create_task(client.get(url))
            await until(lambda: faults.all()[0][1], "the request has come")
        # cut off by the server's end, and not by the client's own timeout
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await asked


class Health(HealthBase):
    """A gRPC service whose requests name a sandbox: `service`."""

    def __init__(self) -> None:
        self.carried_out: list[str] = []

    async def Check(
        self, stream: grpclib.server.Stream[HealthCheckRequest, HealthCheckResponse]
    ) -> None:
        request = await stream.recv_message()
        assert request is not None
        self.carried_out.append(request.service)
        await stream.send_message(HealthCheckResponse(status=SERVING))

    async def Watch(
        self, stream: grpclib.server.Stream[HealthCheckRequest, HealthCheckResponse]
    ) -> None:
        async for request in stream:
            self.carried_out.append(request.service)
            for _ in range(3):
                await stream.send_message(HealthCheckResponse(status=SERVING))


@dataclass
class Served:
    stub: HealthStub
    service: Health
    faults: Faults


@pytest.fixture
async def rpc() -> AsyncIterator[Served]:
    service, faults = Health(), Faults()
    server = grpclib.server.Server([service])
    inject(server, faults, lambda message: str(message.service))
    with listening("127.0.0.1", 0) as listener:
        await server.start(sock=listener)
        port = listener.getsockname()[1]
        async with grpclib.client.Channel("127.0.0.1", port) as channel:
            yield Served(HealthStub(channel), service, faults)
        server.close()
        await server.wait_closed()


async def check(rpc: Served, sandbox: str = "box", within: float = 10) -> int:
    answer = await rpc.stub.Check(HealthCheckRequest(service=sandbox), timeout=within)
    return int(answer.status)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("401", Status.UNAUTHENTICATED),
        ("429", Status.RESOURCE_EXHAUSTED),
        ("503", Status.UNAVAILABLE),
    ],
)
async def test_a_refused_call_has_the_status_of_grpc(
    rpc: Served, fault: Any, status: Status
) -> None:
    rpc.faults.add(Fault(fault=fault))
    with pytest.raises(GRPCError) as refused:
        await check(rpc)
    assert refused.value.status is status
    assert rpc.service.carried_out == []
    assert await check(rpc) == SERVING


async def test_a_call_meets_the_fault_of_its_name_and_its_sandbox(rpc: Served) -> None:
    rpc.faults.add(Fault(fault="503", match=Match(rpc="Check", sandbox="one"), times=None))
    with pytest.raises(GRPCError):
        await check(rpc, "one")
    assert await check(rpc, "two") == SERVING
    watched = await rpc.stub.Watch(HealthCheckRequest(service="one"))
    assert len(watched) == 3
    assert rpc.service.carried_out == ["two", "one"]


async def test_a_call_meets_no_fault_of_http(rpc: Served) -> None:
    rpc.faults.add(Fault(fault="503", match=Match(method="POST")))
    rpc.faults.add(Fault(fault="503", match=Match(path=".")))
    assert await check(rpc) == SERVING


@pytest.mark.parametrize(("fault", "carried_out"), [("reset", []), ("lose", ["box"])])
async def test_a_call_that_is_reset_or_loses_its_answer_loses_its_connection(
    rpc: Served, fault: Any, carried_out: list[str]
) -> None:
    rpc.faults.add(Fault(fault=fault))
    with pytest.raises((StreamTerminatedError, ConnectionError)):
        await check(rpc)
    assert rpc.service.carried_out == carried_out
    assert await check(rpc) == SERVING


async def test_a_hanging_call_gets_no_answer(rpc: Served) -> None:
    rpc.faults.add(Fault(fault="hang"))
    with pytest.raises(asyncio.TimeoutError):
        await check(rpc, within=0.3)
    assert rpc.service.carried_out == []
    assert await check(rpc) == SERVING


async def test_a_delayed_call_is_answered_late(rpc: Served) -> None:
    rpc.faults.add(Fault(fault="delay", seconds=3600))
    with pytest.raises(asyncio.TimeoutError):
        await check(rpc, within=0.1)
    assert rpc.service.carried_out == []
    rpc.faults.add(Fault(fault="delay", seconds=0.1))
    assert await check(rpc) == SERVING


async def test_a_delayed_call_is_carried_out_although_its_client_has_left(rpc: Served) -> None:
    rpc.faults.add(Fault(fault="delay", seconds=0.3))
    with pytest.raises(asyncio.TimeoutError):
        await check(rpc, within=0.1)
    await until(lambda: rpc.service.carried_out == ["box"], "the call is carried out")


async def test_a_taken_port_is_an_error_at_once(cloud: Cloud) -> None:
    async with http_server(Faulty(None, Faults(), cloud), "127.0.0.1") as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await contextlib.AsyncExitStack().enter_async_context(
                http_server(Faulty(None, Faults(), cloud), "127.0.0.1", port)
            )
