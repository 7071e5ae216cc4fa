"""The proxy before a real Docker engine: what comes out is the box that was meant."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest

from tests.support.engine_proxy import (
    BOX,
    NAME,
    SESSION,
    STACK,
    Proxy,
    create_body,
    engine_client,
    name_of,
    proxy_settings,
    running_proxy,
)

API = "/v1.41"
EMPTY_TAR = bytes(1024)


@pytest.fixture
async def real(docker: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with engine_client(docker) as client:
        yield client


@pytest.fixture
async def image(real: aiohttp.ClientSession) -> AsyncIterator[str]:
    """An image with nothing in it: enough to create and to inspect."""
    name = f"holdfast-test-{uuid4().hex[:12]}"
    query = {"fromSrc": "-", "repo": name, "tag": "latest", "changes": 'CMD ["/none"]'}
    async with real.post("/images/create", params=query, data=EMPTY_TAR) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
    yield f"{name}:latest"
    async with real.delete(f"/images/{name}:latest", params={"force": "1"}) as answer:
        assert answer.status == 200, await answer.text()


@pytest.fixture
async def sandbox_proxy(docker: Path, image: str, short_dir: Path) -> AsyncIterator[Proxy]:
    for directory in (f"m/{SESSION}", "r/docker", f"r/gateway/{SESSION}"):
        (short_dir / directory).mkdir(parents=True)
    settings = proxy_settings(
        short_dir,
        engine_socket=docker,
        sandbox_image=image,
        docker_mounts_root=short_dir / "m",
        docker_run_root=short_dir / "r",
        engine_proxy_boxes=short_dir / "r" / "docker",
    )
    async with running_proxy(settings) as running:
        yield running


@asynccontextmanager
async def created(proxy: Proxy, directory: Path, image: str) -> AsyncIterator[str]:
    reply = await proxy.create(create_body(f"{directory}/m", f"{directory}/r", image))
    assert reply.status == 201, reply.body
    try:
        yield reply.body["Id"]
    finally:
        await proxy.call("DELETE", f"{API}/containers/{NAME}?force=1&v=1")


async def volumes(real: aiohttp.ClientSession) -> set[str]:
    async with real.get(f"{API}/volumes") as answer:
        return {volume["Name"] for volume in (await answer.json())["Volumes"] or []}


async def test_a_sandbox_has_no_capability_device_network_or_variable(
    sandbox_proxy: Proxy, short_dir: Path, image: str
) -> None:
    async with created(sandbox_proxy, short_dir, image) as container_id:
        reply = await sandbox_proxy.call("GET", f"{API}/containers/{NAME}/json")
    assert (reply.status, reply.body["Id"]) == (200, container_id)
    config, host = reply.body["Config"], reply.body["HostConfig"]
    assert (config["User"], config["Env"] or [], config["Cmd"]) == ("1000:1000", [], ["/none"])
    assert host["Privileged"] is False
    assert (host["CapAdd"], host["CapDrop"]) == (None, ["ALL"])
    assert (host["Binds"], host["Devices"] or [], host["VolumesFrom"]) == (None, [], None)
    assert (host["NetworkMode"], host["PidMode"], host["ReadonlyRootfs"]) == ("none", "", True)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert (host["Memory"], host["PidsLimit"]) == (512 * 1024**2, 100)
    assert {(mount["Destination"], mount["RW"]) for mount in reply.body["Mounts"]} == {
        ("/session", True),
        ("/run/holdfast/box", True),
        ("/run/holdfast/gateway", False),
        ("/home/agent", True),
    }


async def test_a_sandbox_is_listed_and_gone_with_its_volume_when_it_is_removed(
    sandbox_proxy: Proxy, real: aiohttp.ClientSession, short_dir: Path, image: str
) -> None:
    before = await volumes(real)
    listing = f"{API}/containers/json?all=1"
    async with created(sandbox_proxy, short_dir, image) as container_id:
        listed = await sandbox_proxy.call("GET", listing)
        assert [found["Id"] for found in listed.body] == [container_id]
        assert len(await volumes(real) - before) == 1
        box = short_dir / "r" / "docker" / BOX
        assert stat.S_IMODE(box.stat().st_mode) == 0o770
        removal = f"{API}/containers/{NAME}?force=1&v=1"
        assert (await sandbox_proxy.call("DELETE", removal)).status == 204
        assert not box.exists()
        assert (await sandbox_proxy.call("DELETE", removal)).status == 404
    assert (await sandbox_proxy.call("GET", listing)).body == []
    assert await volumes(real) - before == set()


async def test_a_name_is_given_once(sandbox_proxy: Proxy, short_dir: Path, image: str) -> None:
    async with created(sandbox_proxy, short_dir, image):
        body = create_body(f"{short_dir}/m", f"{short_dir}/r", image)
        assert (await sandbox_proxy.create(body)).status == 409


async def test_start_and_kill_get_the_engines_own_answer(
    sandbox_proxy: Proxy, short_dir: Path, image: str
) -> None:
    async with created(sandbox_proxy, short_dir, image):
        started = await sandbox_proxy.call("POST", f"{API}/containers/{NAME}/start")
        # the image has no program, or the directory of the test is on a private mount
        assert started.status in (400, 404, 500)
        assert "not allowed" not in started.message
        killed = await sandbox_proxy.call("POST", f"{API}/containers/{NAME}/kill")
        assert (killed.status, "is not running" in killed.message) == (409, True)


async def test_a_foreign_container_is_neither_seen_nor_touched(
    sandbox_proxy: Proxy, real: aiohttp.ClientSession, image: str
) -> None:
    foreign = name_of(epoch="77")  # a name of ours, without our label
    async with real.post(
        f"{API}/containers/create", params={"name": foreign}, json={"Image": image}
    ) as answer:
        assert answer.status == 201, await answer.text()
        container_id = (await answer.json())["Id"]
    try:
        for method, target in [
            ("GET", f"{API}/containers/{foreign}/json"),
            ("POST", f"{API}/containers/{foreign}/start"),
            ("POST", f"{API}/containers/{foreign}/kill"),
            ("DELETE", f"{API}/containers/{foreign}?force=1&v=1"),
            ("DELETE", f"{API}/containers/{container_id}?force=1&v=1"),
        ]:
            assert (await sandbox_proxy.call(method, target)).status == 403
        listed = await sandbox_proxy.call("GET", f"{API}/containers/json?all=1")
        assert container_id not in [found["Id"] for found in listed.body]
        async with real.get(f"{API}/containers/{container_id}/json") as answer:
            assert (await answer.json())["State"]["Status"] == "created"
    finally:
        async with real.delete(f"{API}/containers/{container_id}", params={"force": "1"}) as answer:
            assert answer.status == 204


@pytest.mark.parametrize(
    "hidden",
    ['"privileged": true', '"\\u0050rivileged": true', '"PRIVILEGED":' + " " * 20_000 + "true"],
    ids=["case", "escape", "padding"],
)
async def test_what_the_engine_would_take_for_privileged_is_refused(
    sandbox_proxy: Proxy,
    real: aiohttp.ClientSession,
    short_dir: Path,
    image: str,
    hidden: str,
) -> None:
    body = json.dumps(create_body(f"{short_dir}/m", f"{short_dir}/r", image))
    body = body.replace('"CapDrop"', f'{hidden}, "CapDrop"')
    (short_dir / "r" / "docker" / BOX).mkdir()
    # the engine itself understands it: that is what makes it a bypass
    async with real.post(
        f"{API}/containers/create",
        data=body,
        headers={"Content-Type": "application/json"},
    ) as answer:
        assert answer.status == 201, await answer.text()
        raw_id = (await answer.json())["Id"]
    try:
        async with real.get(f"{API}/containers/{raw_id}/json") as answer:
            assert (await answer.json())["HostConfig"]["Privileged"] is True
    finally:
        query = {"force": "1", "v": "1"}
        async with real.delete(f"{API}/containers/{raw_id}", params=query) as answer:
            assert answer.status == 204
    assert (await sandbox_proxy.create(body.encode())).status == 403


async def test_the_image_and_the_engine_are_told_about(sandbox_proxy: Proxy, image: str) -> None:
    assert (await sandbox_proxy.call("GET", "/_ping")).body == b"OK"
    assert (await sandbox_proxy.call("GET", "/version")).body["ApiVersion"]
    found = await sandbox_proxy.call("GET", f"{API}/images/{image}/json")
    assert found.body["RepoTags"] == [image]
    assert STACK not in json.dumps(found.body)
