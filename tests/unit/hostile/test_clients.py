"""Every call that leaves one of our processes has a bound in time, and none goes where it is sent.

Read from the source, so that a client that somebody adds is looked at too."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import list_calls, list_nodes

PACKAGES = ("api", "client", "contracts", "docker", "seaweedfs", "sidecar", "stack")

# How a client is made -> what must be said when it is.
CLIENTS = {
    "httpx.AsyncClient": "timeout",
    "httpx.Client": "timeout",
    "httpx.get": "timeout",
    "httpx.post": "timeout",
    "httpx.stream": "timeout",
    "httpx.request": "timeout",
    "aiohttp.ClientSession": "timeout",
    "aiodocker.Docker": "timeout",
    "asyncpg.connect": "command_timeout",
    "asyncpg.create_pool": "command_timeout",
    "urllib.request.urlopen": "timeout",
    "http.client.HTTPConnection": "timeout",
    "session.client": "config",
    "aioboto3.Session().client": "config",
    "shared_session().client": "config",
    "Session().create_client": "config",
}
BOTO = ("AioConfig", "Config")
VERBS = ("get", "post", "put", "delete", "request", "patch", "head", "options", "ws_connect")
# Where a redirect is followed, and why that is harmless.
FOLLOWS = {"stack/install/download.py": "a release file whose sha256 is pinned"}


@functools.cache
def sources() -> tuple[Path, ...]:
    return tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def said(call: ast.Call) -> set[str]:
    return {keyword.arg for keyword in call.keywords if keyword.arg is not None}


def test_every_client_is_made_with_a_timeout() -> None:
    found: dict[str, list[str]] = {}
    for path in sources():
        for name, call in list_calls(path):
            if name in CLIENTS:
                place = f"{path.relative_to(ROOT)}:{call.lineno}"
                found.setdefault(name, []).append(place)
                assert CLIENTS[name] in said(call), f"{place}: {name} without {CLIENTS[name]}"
    # that the list above still matches what is there
    assert len(found["httpx.AsyncClient"]) >= 4, found
    assert len(found["aiohttp.ClientSession"]) >= 5, found
    assert len(found["asyncpg.connect"]) >= 1, found
    assert sum(len(places) for name, places in found.items() if name.endswith("client")) >= 4


def test_every_client_of_the_store_has_both_timeouts() -> None:
    found = 0
    for path in sources():
        for name, call in list_calls(path):
            if name in BOTO:
                found += 1
                place = f"{path.relative_to(ROOT)}:{call.lineno}"
                assert {"connect_timeout", "read_timeout"} <= said(call), place
    assert found >= 5


def test_no_other_way_of_making_a_client_is_used() -> None:
    """The import of a library that is not in the list above would go unseen."""
    for path in sources():
        for node in list_nodes(path):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
                made = {"AsyncClient", "ClientSession", "urlopen", "create_pool"}
                assert not made & {alias.name for alias in node.names}, path
            for name in names:
                assert name.split(".")[0] not in ("requests", "urllib3", "websockets"), path


def test_no_client_follows_a_redirect() -> None:
    for path in sources():
        for name, call in list_calls(path):
            for keyword in call.keywords:
                if keyword.arg == "follow_redirects":
                    follows = not isinstance(keyword.value, ast.Constant) or keyword.value.value
                    relative = str(path.relative_to(ROOT))
                    assert not follows or relative in FOLLOWS, f"{relative}:{call.lineno} {name}"


def test_every_request_of_aiohttp_which_follows_by_default_says_not_to() -> None:
    found = 0
    for path in sources():
        source = path.read_text()
        if "aiohttp.ClientSession" not in source or path.name == "docker.py":
            continue
        for name, call in list_calls(path):
            owner, _, verb = name.rpartition(".")
            if verb in VERBS and owner in ("http", "self._http"):
                found += 1
                place = f"{path.relative_to(ROOT)}:{call.lineno}"
                assert "allow_redirects=False" in ast.unparse(call), place
    assert found >= 9


@pytest.mark.parametrize("provider", ["e2b", "daytona", "modal"])
def test_every_call_of_a_clouds_sdk_is_inside_a_bounded_block(provider: str) -> None:
    """Their SDKs make clients of their own: what is asked of them is bounded from outside."""
    source = (ROOT / "sidecar" / "providers" / f"{provider}.py").read_text()
    (asking,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "_asking"
    ]
    assert "async with asyncio.timeout(" in ast.unparse(asking)
    assert source.count("async with self._asking(") >= 8
