"""From inside a real box: programs reach what the proxy lets them, and nothing without it."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator

import pytest

from sidecar.boxhost.boxes import HOME, Box, Boxes, BoxSpec
from sidecar.gateway.egress.proxy import Allowed, Rules
from sidecar.harnesses.agent_server import proxies
from tests.integration.boxhost.conftest import boxes as boxes
from tests.integration.boxhost.conftest import spec as spec
from tests.support.egress import ANY_PORT, Running, Web, echo, last, listener, running, said
from tests.support.requirements import missing

PROXIES = proxies("http://127.0.0.1:8080")
FETCH = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.reason)
except urllib.error.URLError as error:
    print(error.reason)
"""


@pytest.fixture
async def there() -> AsyncIterator[Running]:
    rules = Rules(allow=("web.example",), ports=ANY_PORT)
    async with running(Allowed("allow"), rules) as running_there:
        yield running_there


@pytest.fixture
async def box(boxes: Boxes, spec: BoxSpec, there: Running) -> Box:
    return await boxes.start(dataclasses.replace(spec, gateway_socket=there.path))


async def inside(boxes: Boxes, box: Box, *argv: str, env: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *boxes.entering(box, list(argv), "/"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "HOME": HOME, **(PROXIES if env is None else env)},
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return output.decode().strip()


async def test_python_reaches_a_permitted_host_and_is_told_why_not_another(
    boxes: Boxes, box: Box, there: Running
) -> None:
    async with listener(Web()) as port:
        there.permit("web.example", port)
        fetch = ("python3", "-c", FETCH)
        assert await inside(boxes, box, *fetch, f"http://web.example:{port}/") == "hi"
        refused = await inside(boxes, box, *fetch, f"http://other.example:{port}/")
        assert refused == "403 other.example is not on the allow-list"
        tunnel = await inside(boxes, box, *fetch, f"https://other.example:{port}/")
        assert tunnel == "Tunnel connection failed: 403 other.example is not on the allow-list"
    record = await last(there, 3)
    assert said(there.told[0]) == ("web.example", "allowed", "")
    assert there.told[0]["bytes_down"] > 0
    assert (record["method"], record["verdict"]) == ("CONNECT", "refused")


@pytest.fixture
def program(request: pytest.FixtureRequest) -> None:
    """A program of the host, whose /usr the box sees."""
    if shutil.which(request.param) is None:
        missing("programs", f"needs {request.param}")


@pytest.mark.parametrize("program", ["curl"], indirect=True)
@pytest.mark.usefixtures("program")
async def test_curl_tunnels_to_a_permitted_host(boxes: Boxes, box: Box, there: Running) -> None:
    async with listener(Web()) as port:
        there.permit("web.example", port)
        url = f"http://web.example:{port}/"
        assert await inside(boxes, box, "curl", "-sS", "-m", "20", url) == "hi"
        tunnelled = await inside(boxes, box, "curl", "-sS", "-m", "20", "--proxytunnel", url)
        assert tunnelled == "hi"
        refused = await inside(
            boxes, box, "curl", "-sS", "-m", "20", "--proxytunnel", "http://10.0.0.1/"
        )
        assert "403" in refused
    await last(there, 3)
    assert [each["method"] for each in there.told] == ["GET", "CONNECT", "CONNECT"]
    assert there.dialled.addresses == [("127.0.0.1", port)] * 2


@pytest.mark.parametrize("program", ["git"], indirect=True)
@pytest.mark.usefixtures("program")
async def test_git_asks_the_proxy(boxes: Boxes, box: Box, there: Running) -> None:
    await inside(boxes, box, "git", "ls-remote", "https://other.example/x.git")
    assert said(await last(there))[:2] == ("other.example", "refused")


async def test_the_model_is_reached_without_the_proxy(
    boxes: Boxes, box: Box, there: Running
) -> None:
    answer = await inside(boxes, box, "python3", "-c", FETCH, "http://127.0.0.1:8080/v1/models")
    assert answer == "model GET /v1/models"
    assert there.told == []


async def test_without_the_proxy_there_is_no_way_out(
    boxes: Boxes, box: Box, there: Running
) -> None:
    """Not even to what the proxy would let through."""
    async with listener(echo) as port:
        there.permit("web.example", port)
        routes = await inside(boxes, box, "cat", "/proc/net/route", env={})
        assert len(routes.splitlines()) == 1  # the headline
        connect = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)"
        for host in ("127.0.0.1", "web.example"):
            answer = await inside(boxes, box, "python3", "-c", connect, host, str(port), env={})
            assert "Error" in answer.splitlines()[-1] or "gaierror" in answer
    assert (there.told, there.dialled.addresses) == ([], [])


async def test_the_proxy_does_not_lead_back_to_this_machine(
    boxes: Boxes, box: Box, there: Running
) -> None:
    """Services of the host, as the box would name them."""
    there.proxy.begin_turn(Allowed("open"))
    async with listener(Web()) as port:
        there.names.known["localtest.example"] = [["127.0.0.1"]]
        for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "localtest.example"):
            answer = await inside(
                boxes,
                box,
                *("python3", "-c", FETCH, f"http://{host}:{port}/"),
                env={name: value for name, value in PROXIES.items() if "no" not in name.lower()},
            )
            assert answer[:3] in ("400", "403"), (host, answer)
    assert there.dialled.addresses == []
    assert {each["verdict"] for each in there.told} == {"refused"}
