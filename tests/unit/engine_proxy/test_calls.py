"""Every call but a create: what is let through, in which words, and what is not."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest

from tests.support.engine_proxy import (
    CONTAINER_ID,
    NAME,
    SESSION,
    STACK,
    Proxy,
    RecordingEngine,
    create_body,
    name_of,
    proxy_settings,
    running_proxy,
)
from tests.support.services import until

INSPECTED = ("GET", f"/v1.41/containers/{NAME}/json")
OURS = f"holdfast.stack={STACK}"


@pytest.mark.parametrize(
    "path", ["/_ping", "/version", "/v1.41/version", "/v1.50/images/holdfast-sandbox:latest/json"]
)
async def test_what_only_tells_is_passed_on(
    proxy: Proxy, engine: RecordingEngine, path: str
) -> None:
    assert (await proxy.call("GET", path)).status == 200
    assert engine.calls == [("GET", path)]


@pytest.mark.parametrize(
    ("method", "action", "query"),
    [
        ("POST", "/start", ""),
        ("POST", "/kill", ""),
        ("DELETE", "", "?force=1&v=1"),
        ("DELETE", "", "?v=true&force=true"),
    ],
)
async def test_a_sandbox_is_acted_on_by_the_id_that_was_inspected(
    proxy: Proxy, engine: RecordingEngine, method: str, action: str, query: str
) -> None:
    reply = await proxy.call(method, f"/v1.41/containers/{NAME}{action}{query}")
    assert reply.status == 204
    sent = "?force=1&v=1" if query else ""
    acted = (method, f"/v1.41/containers/{CONTAINER_ID}{action}{sent}")
    assert engine.calls == [INSPECTED, acted]


async def test_an_inspection_is_passed_on(proxy: Proxy, engine: RecordingEngine) -> None:
    reply = await proxy.call("GET", f"/v1.41/containers/{NAME}/json")
    assert (reply.status, reply.body["Id"]) == (200, CONTAINER_ID)
    assert engine.calls == [INSPECTED]


ON_A_SANDBOX = [
    ("GET", "/json"),
    ("POST", "/start"),
    ("POST", "/kill"),
    ("DELETE", "?force=1&v=1"),
]


@pytest.mark.parametrize(("method", "action"), ON_A_SANDBOX)
@pytest.mark.parametrize("stack", ["ffffffff", ""])
async def test_a_container_without_our_label_is_refused_though_it_has_our_name(
    proxy: Proxy, engine: RecordingEngine, method: str, action: str, stack: str
) -> None:
    engine.stack = stack
    reply = await proxy.call(method, f"/v1.41/containers/{NAME}{action}")
    assert (reply.status, "not a sandbox of this stack" in reply.message) == (403, True)
    assert engine.calls == [INSPECTED]


@pytest.mark.parametrize(("method", "action"), ON_A_SANDBOX)
@pytest.mark.parametrize(
    "name",
    [
        "postgres",
        CONTAINER_ID,
        CONTAINER_ID[:12],
        name_of(stack="ffffffff"),
        name_of(epoch="03"),
        name_of(epoch=""),
        name_of(session=SESSION.upper()),
        f"{NAME}-1",
        f"x{NAME}",
    ],
)
async def test_a_name_that_no_sandbox_of_ours_has_never_reaches_the_engine(
    proxy: Proxy, engine: RecordingEngine, method: str, action: str, name: str
) -> None:
    reply = await proxy.call(method, f"/v1.41/containers/{name}{action}")
    assert reply.status == 403
    assert engine.seen == []


@pytest.mark.parametrize(("method", "action"), ON_A_SANDBOX)
async def test_a_container_that_is_not_there_is_the_engines_404(
    proxy: Proxy, engine: RecordingEngine, method: str, action: str
) -> None:
    engine.has_container = False
    reply = await proxy.call(method, f"/v1.41/containers/{NAME}{action}")
    assert (reply.status, reply.message) == (404, "No such container")
    assert engine.calls == [INSPECTED]


@pytest.mark.parametrize(("field", "value"), [("name", "/other"), ("container_id", "../x")])
async def test_an_answer_about_something_else_is_not_acted_on(
    proxy: Proxy, engine: RecordingEngine, field: str, value: str
) -> None:
    setattr(engine, field, value)
    assert (await proxy.call("POST", f"/v1.41/containers/{NAME}/start")).status == 503
    assert engine.calls == [INSPECTED]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/info"),
        ("GET", "/events"),
        ("GET", "/containers"),
        ("POST", "/containers/json"),
        ("PUT", "/containers/create"),
        ("GET", f"/containers/{NAME}"),
        ("POST", f"/containers/{NAME}/exec"),
        ("POST", "/exec/abc/start"),
        ("POST", f"/containers/{NAME}/attach"),
        ("GET", f"/containers/{NAME}/attach/ws"),
        ("GET", f"/containers/{NAME}/logs"),
        ("GET", f"/containers/{NAME}/top"),
        ("GET", f"/containers/{NAME}/archive"),
        ("PUT", f"/containers/{NAME}/archive"),
        ("POST", f"/containers/{NAME}/update"),
        ("POST", f"/containers/{NAME}/rename"),
        ("POST", f"/containers/{NAME}/restart"),
        ("GET", f"/containers/{NAME}/export"),
        ("POST", "/containers/prune"),
        ("POST", "/commit"),
        ("POST", "/build"),
        ("POST", "/images/create"),
        ("POST", "/images/load"),
        ("GET", "/images/json"),
        ("GET", "/images/other:latest/json"),
        ("DELETE", "/images/holdfast-sandbox:latest"),
        ("GET", "/networks"),
        ("POST", "/networks/create"),
        ("GET", "/volumes"),
        ("POST", "/volumes/create"),
        ("POST", "/plugins/pull"),
        ("POST", "/session"),
        ("POST", "/grpc"),
        ("POST", "/swarm/init"),
        ("POST", "/auth"),
        ("HEAD", "/_ping"),
    ],
)
@pytest.mark.parametrize("version", ["", "/v1.41"])
async def test_every_other_call_is_refused_by_its_name(
    proxy: Proxy, engine: RecordingEngine, method: str, path: str, version: str
) -> None:
    reply = await proxy.call(method, version + path)
    assert reply.status == 403
    assert method == "HEAD" or f"{method} '{path[:40]}" in reply.message
    assert engine.seen == []


@pytest.mark.parametrize(
    "target",
    [
        "/v1.41/../containers/json",
        "/v1.41/./version",
        "/v1.41//version",
        "//version",
        "/version/",
        "/v1.41",
        "/v1.41/",
        "/v1/version",
        "/v1.41.0/version",
        "/v1.41/v1.41/version",
        "/v9999.41/version",
        "/%76ersion",
        "/containers%2Fjson",
        f"/containers/{NAME}%2Fexec",
        f"/containers/{NAME}%2F..%2Fother/json",
        f"/containers/{NAME}/../other/json",
        f"/containers/{NAME}/json/../exec",
        f"/containers/{NAME}/json#x",
        f"/containers/{NAME}/json;x",
        "/images/holdfast-sandbox:latest/../other/json",
        "http://engine/version",
        "http://engine/v1.41/containers/json",
        "version",
        "*",
        "/VERSION",
        "/_ping?x=1",
        "/version?x",
        "/v1.40/version",
        "/v1.24/containers/json",
        "/v0.99/version",
    ],
)
async def test_a_path_in_another_spelling_is_refused(
    proxy: Proxy, engine: RecordingEngine, target: str
) -> None:
    reply = await proxy.call("GET", target)
    assert reply.status in (400, 403)
    assert engine.seen == []


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", f"/containers/{NAME}/start?checkpoint=x"),
        ("POST", f"/containers/{NAME}/start?detachKeys=x"),
        ("POST", f"/containers/{NAME}/kill?signal=STOP"),
        ("GET", f"/containers/{NAME}/json?size=1"),
        ("DELETE", f"/containers/{NAME}"),
        ("DELETE", f"/containers/{NAME}?force=1"),
        ("DELETE", f"/containers/{NAME}?force=1&v=0"),
        ("DELETE", f"/containers/{NAME}?force=1&v=1&link=1"),
        ("DELETE", f"/containers/{NAME}?force=1&v=1&v=0"),
    ],
)
async def test_a_parameter_that_the_call_does_not_have_is_refused(
    proxy: Proxy, engine: RecordingEngine, method: str, target: str
) -> None:
    assert (await proxy.call(method, target)).status == 403
    assert engine.seen == []


async def test_a_start_takes_no_configuration_of_the_host(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    start = f"/v1.41/containers/{NAME}/start"
    assert (await proxy.call("POST", start, {"Privileged": True})).status == 403
    assert engine.seen == []
    assert (await proxy.call("POST", start, {})).status == 204
    assert [call.body for call in engine.seen] == [b"", b""]


def listed(engine: RecordingEngine) -> dict[str, list[str]]:
    (call,) = engine.seen
    path, _, query = call.target.partition("?")
    assert path == "/v1.41/containers/json"
    return parse_qs(query)


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("", [OURS]),
        ("&filters={}", [OURS]),
        ('&filters={"label":[]}', [OURS]),
        (f'&filters={{"label":["{OURS}"]}}', [OURS]),
        (
            f'&filters={{"label":["holdfast.session={SESSION}"]}}',
            [OURS, f"holdfast.session={SESSION}"],
        ),
        (
            f'&filters={{"label":["{OURS}","holdfast.key={SESSION}-3"]}}',
            [OURS, f"holdfast.key={SESSION}-3"],
        ),
    ],
)
async def test_a_list_is_always_of_our_sandboxes(
    proxy: Proxy, engine: RecordingEngine, query: str, labels: list[str]
) -> None:
    target = "/v1.41/containers/json?all=1" + quote(query, safe="&=")
    assert (await proxy.call("GET", target)).status == 200
    query_sent = listed(engine)
    assert query_sent["all"] == ["1"]
    assert json.loads(query_sent["filters"][0]) == {"label": labels}


@pytest.mark.parametrize(
    "query",
    [
        'filters={"label":["holdfast.stack=ffffffff"]}',
        'filters={"label":["holdfast.stack"]}',
        'filters={"label":["other=1"]}',
        'filters={"label":["holdfast.session=x"]}',
        'filters={"label":["holdfast.epoch=3"]}',
        'filters={"label":{"holdfast.stack=ffffffff":true}}',
        'filters={"label":[1]}',
        'filters={"name":["x"]}',
        'filters={"Label":["x"]}',
        'filters={"label":[],"label":["x"]}',
        "filters=[]",
        "filters=x",
        "filters={}&filters={}",
        "all=0",
        "limit=1",
        "size=1",
        "before=x",
    ],
)
async def test_a_list_of_anything_else_is_refused(
    proxy: Proxy, engine: RecordingEngine, query: str
) -> None:
    target = "/v1.41/containers/json?" + quote(query, safe="&=")
    assert (await proxy.call("GET", target)).status == 403
    assert engine.seen == []


async def test_an_engine_that_is_away_is_a_503_in_its_own_shape(short_dir: Path) -> None:
    async with running_proxy(proxy_settings(short_dir)) as proxy:
        reply = await proxy.call("GET", "/version")
        assert (reply.status, "cannot be reached" in reply.message) == (503, True)
        assert list(reply.body) == ["message"]
        engine = RecordingEngine()
        async with engine.at(short_dir / "engine.sock"):
            assert (await proxy.call("GET", "/version")).status == 200


async def test_an_engine_that_hangs_up_is_a_503_and_is_asked_once(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    engine.drops = True
    assert (await proxy.create(create_body())).status == 503
    assert len(engine.seen) == 1


async def test_an_engine_that_does_not_answer_is_a_503(
    short_dir: Path, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.engine_proxy.engine.CALL_SECONDS", 0.2)
    engine.hangs = True
    async with running_proxy(proxy_settings(short_dir)) as proxy:
        reply = await proxy.call("GET", "/version")
    assert (reply.status, "did not answer within" in reply.message) == (503, True)


@pytest.mark.parametrize(("size", "status"), [(4 * 1024**2, 200), (4 * 1024**2 + 1, 503)])
async def test_an_answer_is_read_up_to_a_bound(
    proxy: Proxy, engine: RecordingEngine, size: int, status: int
) -> None:
    engine.answer_bytes = size
    assert (await proxy.call("GET", "/version")).status == status


async def test_refusals_creations_and_deletions_are_one_line_each_without_a_body(
    proxy: Proxy, engine: RecordingEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sidecar.engine_proxy")
    await proxy.create(create_body())
    await proxy.create(create_body() | {"Env": ["KEY=hidden-value"]})
    await proxy.call("DELETE", f"/v1.41/containers/{NAME}?force=1&v=1")
    await proxy.call("POST", "/exec/a%0Ab/start?x=hidden-value")
    await until(lambda: len(caplog.messages) == 4, "a line each")
    assert caplog.messages == [
        f"create {NAME}: 201",
        "refused POST '/v1.41/containers/create': Env is not allowed",
        f"delete {NAME}: 204",
        "refused POST '/exec/a%0Ab/start': POST '/exec/a%0Ab/start' is not allowed",
    ]
