"""A create request is built anew: what differs from a sandbox's is refused by its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.engine_proxy import (
    BOX,
    NAME,
    SESSION,
    Proxy,
    RecordingEngine,
    create_body,
    name_of,
)

GIB = 1024**3
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"
DELETED = object()
Place = tuple[str, ...]


def changed(path: str | Place, value: Any) -> dict[str, Any]:
    """The provider's body with one place set, or deleted; as text, `a/b/0/c` is a path into it."""
    body = copy.deepcopy(create_body())
    steps = path.split("/") if isinstance(path, str) else path
    place: Any = body
    for step in steps[:-1]:
        place = place[int(step) if isinstance(place, list) else step]
    key: Any = int(steps[-1]) if isinstance(place, list) else steps[-1]
    if value is DELETED:
        del place[key]
    elif isinstance(place, list) and key == len(place):
        place.append(value)
    else:
        place[key] = value
    return body


def places(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Everything that stands in a body, with where: tables and lists too."""
    yield path, value
    if isinstance(value, dict):
        for key, below in value.items():
            yield from places(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from places(below, (*path, str(index)))


PLACES = [path for path, _ in places(create_body()) if path]
TABLES = [path for path, value in places(create_body()) if isinstance(value, dict)]


async def assert_refused(
    proxy: Proxy, engine: RecordingEngine, body: Any, *words: str, target: str | None = None
) -> None:
    reply = await proxy.create(body, target)
    assert reply.status == 403
    assert engine.seen == []
    for word in words:
        assert word in reply.message


async def test_what_the_provider_sends_reaches_the_engine_as_it_is(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    reply = await proxy.create(create_body())
    assert (reply.status, reply.body["Id"]) == (201, engine.container_id)
    assert engine.calls == [("POST", f"/v1.41/containers/create?name={NAME}")]
    assert json.loads(engine.seen[0].body) == create_body()
    assert engine.seen[0].headers["Content-Type"] == "application/json"


async def test_the_engine_gets_bytes_that_the_proxy_wrote(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    escaped = json.dumps(create_body(), indent=7).replace("Image", "\\u0049mage")
    assert (await proxy.create(escaped.encode())).status == 201
    assert engine.seen[0].body == json.dumps(create_body()).encode()


async def test_a_version_is_not_needed(proxy: Proxy, engine: RecordingEngine) -> None:
    assert (await proxy.create(create_body(), f"/containers/create?name={NAME}")).status == 201
    assert engine.calls == [("POST", f"/containers/create?name={NAME}")]


@pytest.mark.parametrize("table", TABLES, ids="/".join)
async def test_an_unknown_field_is_refused_at_every_level(
    proxy: Proxy, engine: RecordingEngine, table: Place
) -> None:
    await assert_refused(proxy, engine, changed((*table, "Surplus"), True), "Surplus is not")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("Env", ["A=b"]),
        ("Cmd", ["/bin/sh"]),
        ("Entrypoint", ["/bin/sh"]),
        ("Volumes", {"/x": {}}),
        ("ExposedPorts", {"80/tcp": {}}),
        ("NetworkingConfig", {}),
        ("HostConfig/Privileged", True),
        ("HostConfig/Privileged", False),
        ("HostConfig/Binds", ["/:/host"]),
        ("HostConfig/Devices", []),
        ("HostConfig/DeviceRequests", []),
        ("HostConfig/DeviceCgroupRules", ["a *:* rwm"]),
        ("HostConfig/CapAdd", ["SYS_ADMIN"]),
        ("HostConfig/PidMode", "host"),
        ("HostConfig/IpcMode", "host"),
        ("HostConfig/UTSMode", "host"),
        ("HostConfig/UsernsMode", "host"),
        ("HostConfig/CgroupnsMode", "host"),
        ("HostConfig/CgroupParent", "/"),
        ("HostConfig/Runtime", "other"),
        ("HostConfig/VolumesFrom", [NAME]),
        ("HostConfig/Sysctls", {}),
        ("HostConfig/MaskedPaths", []),
        ("HostConfig/ReadonlyPaths", []),
        ("HostConfig/OomKillDisable", True),
        ("HostConfig/Mounts/3/VolumeOptions", {"DriverConfig": {}}),
        ("HostConfig/Mounts/3/Source", "other-volume"),
        ("HostConfig/Mounts/0/BindOptions/CreateMountpoint", True),
    ],
)
async def test_a_dangerous_field_is_refused_by_name(
    proxy: Proxy, engine: RecordingEngine, path: str, value: Any
) -> None:
    await assert_refused(proxy, engine, changed(path, value), path.split("/")[-1], "is not allowed")


# Go's decoder takes each of these for the field itself, and the last one that it meets counts.
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("HostConfig/privileged", True),
        ("HostConfig/PRIVILEGED", True),
        ("HostConfig/binds", ["/:/host"]),
        ("HostConfig/capdrop", []),
        ("HostConfig/networkmode", "host"),
        ("hostconfig", {"Privileged": True}),
        ("image", "other"),
        ("user", "0:0"),
        ("HostConfig/Mounts/0/source", "/"),
        ("HostConfig/Mounts/2/readonly", False),
        ("Labels/Holdfast.stack", "ffffffff"),
        # Unicode folding: U+017F is an s, U+212A a K
        ("HostConfig/Bind\u017f", ["/:/host"]),
        ("HostConfig/Networ\u212aMode", "host"),
    ],
)
async def test_a_field_in_another_case_is_refused(
    proxy: Proxy, engine: RecordingEngine, path: str, value: Any
) -> None:
    await assert_refused(proxy, engine, changed(path, value), "is not allowed")


@pytest.mark.parametrize("place", PLACES, ids="/".join)
async def test_no_field_may_be_missing_or_of_another_value_or_type(
    proxy: Proxy, engine: RecordingEngine, place: Place
) -> None:
    for value in (DELETED, None, {}, [], "", "1", 0, -1, 1.0, True, False):
        body = changed(place, value)
        if json.dumps(body) != json.dumps(create_body()):
            await assert_refused(proxy, engine, body)


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("Image", "other:latest", "Image"),
        ("User", "0:0", "User"),
        ("User", "1000", "User"),
        ("Labels/holdfast.stack", "ffffffff", "Labels.holdfast.stack"),
        ("Labels/holdfast.session", OTHER, "Labels.holdfast.session"),
        ("Labels/holdfast.epoch", "4", "Labels.holdfast.epoch"),
        ("Labels/holdfast.epoch", 3, "Labels.holdfast.epoch"),
        ("Labels/holdfast.key", f"{SESSION}-03", "Labels.holdfast.key"),
        ("Labels/holdfast.key", f"{SESSION.upper()}-3", "Labels.holdfast.key"),
        ("Labels/holdfast.key", f"{SESSION}-3\n", "Labels.holdfast.key"),
        ("Labels/holdfast.key", f"{SESSION}-\u0663", "Labels.holdfast.key"),
        ("Labels/holdfast.key", f"{OTHER}-3", "the name must be"),
        ("HostConfig/NetworkMode", "host", "HostConfig.NetworkMode"),
        ("HostConfig/CapDrop", [], "HostConfig.CapDrop"),
        ("HostConfig/CapDrop", ["ALL", "NET_RAW"], "HostConfig.CapDrop"),
        ("HostConfig/SecurityOpt/1", "seccomp=unconfined", "HostConfig.SecurityOpt"),
        ("HostConfig/Tmpfs", {"/etc": "rw"}, "HostConfig.Tmpfs"),
        ("HostConfig/RestartPolicy/Name", "always", "HostConfig.RestartPolicy.Name"),
        ("HostConfig/LogConfig/Type", "syslog", "HostConfig.LogConfig.Type"),
        ("HostConfig/Memory", 4 * GIB + 1, "HostConfig.Memory"),
        ("HostConfig/Memory", 512.0 * 1024**2, "HostConfig.Memory"),
        ("HostConfig/NanoCpus", 2_000_000_001, "HostConfig.NanoCpus"),
        ("HostConfig/PidsLimit", 1025, "HostConfig.PidsLimit"),
        ("HostConfig/PidsLimit", "100", "HostConfig.PidsLimit"),
        ("HostConfig/Mounts/0/Source", "/", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Source", f"/m/{OTHER}", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Source", f"/m/{SESSION}/", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Source", f"/m/{SESSION}/../..", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Source", f"/m//{SESSION}", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Source", f"/m/{SESSION}\x00", "HostConfig.Mounts[0].Source"),
        ("HostConfig/Mounts/0/Target", "/etc", "HostConfig.Mounts[0].Target"),
        ("HostConfig/Mounts/0/BindOptions/Propagation", "rshared", "Propagation"),
        ("HostConfig/Mounts/1/Source", f"/r/docker/../{BOX}", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", f"/etc/{BOX}", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", f"/r/docker/{BOX}/..", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", f"/r/docker/{'0' * 16}", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", "/r/docker/..", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", "/r/docker/", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", f"/r/docker/{BOX.upper()}", "Mounts[1].Source"),
        ("HostConfig/Mounts/1/Source", f"/r/docker/{BOX}\n", "Mounts[1].Source"),
        ("HostConfig/Mounts/2/Source", f"/r/gateway/{OTHER}", "Mounts[2].Source"),
        ("HostConfig/Mounts/2/ReadOnly", 1, "Mounts[2].ReadOnly"),
        ("HostConfig/Mounts/3/Type", "npipe", "Mounts[3].Type"),
        ("HostConfig/Mounts/4", {"Type": "bind", "Source": "/", "Target": "/x"}, "4 entries"),
    ],
)
async def test_a_wrong_value_is_refused_by_its_field(
    proxy: Proxy, engine: RecordingEngine, path: str, value: Any, word: str
) -> None:
    await assert_refused(proxy, engine, changed(path, value), word)


async def test_the_limits_themselves_are_allowed(proxy: Proxy, engine: RecordingEngine) -> None:
    body = create_body()
    body["HostConfig"] |= {"Memory": 4 * GIB, "NanoCpus": 2_000_000_000, "PidsLimit": 1024}
    assert (await proxy.create(body)).status == 201
    assert json.loads(engine.seen[0].body) == body


def _twice(inner: str) -> Callable[[], bytes]:
    return lambda: json.dumps(create_body()).replace('"CapDrop"', f'{inner}, "CapDrop"').encode()


@pytest.mark.parametrize(
    "make",
    [
        _twice('"NetworkMode": "host"'),
        _twice('"NetworkMode": "none"'),
        _twice('"\\u004eetworkMode": "host"'),
    ],
    ids=["other", "same", "escaped"],
)
async def test_a_key_that_is_there_twice_is_refused(
    proxy: Proxy, engine: RecordingEngine, make: Callable[[], bytes]
) -> None:
    await assert_refused(proxy, engine, make(), "NetworkMode", "twice")


async def test_an_escaped_privileged_is_refused_by_its_name(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    body = _twice('"\\u0050rivileged": true')()
    await assert_refused(proxy, engine, body, "HostConfig.Privileged is not allowed")


@pytest.mark.parametrize("where", ["before", "within", "behind"])
async def test_padding_hides_nothing(proxy: Proxy, engine: RecordingEngine, where: str) -> None:
    padding = b" " * 20_000
    body = json.dumps(changed("HostConfig/Privileged", True)).encode()
    if where == "before":
        body = padding + body
    elif where == "within":
        body = body.replace(b'"Privileged"', padding + b'"Privileged"')
    else:
        body = json.dumps(create_body()).encode() + padding + b'{"HostConfig":{"Privileged":true}}'
    await assert_refused(proxy, engine, body)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "not JSON"),
        (b"null", "wrong type"),
        (b"[]", "wrong type"),
        (b"{}", "Labels is missing"),
        (b'{"Labels": null}', "wrong type"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        ("{}".encode("utf-16"), "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"Labels": NaN}', "NaN"),
        (b"[" * 60_000, "not JSON"),
        (b'{"a": ' + b"9" * 60_000 + b"}", "not JSON"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "twice"),
        (b'{"Labels": {}} {}', "not JSON"),
        (b" " * (64 * 1024 + 1), "longer than 65536"),
    ],
    ids=lambda value: ascii(value)[:20],
)
async def test_what_is_not_one_json_object_is_refused(
    proxy: Proxy, engine: RecordingEngine, body: bytes, word: str
) -> None:
    await assert_refused(proxy, engine, body, word)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("", "name is missing"),
        ("?", "name is missing"),
        ("?name=", "the name must be"),
        ("?name=x", "the name must be"),
        (f"?name=x&name={NAME}", "twice"),
        (f"?name={NAME}&n%61me=x", "twice"),
        (f"?name={NAME}&platform=linux", "platform"),
        (f"?name={NAME}&Name=x", "'Name'"),
        (f"?name={NAME};name=x", "the name must be"),
        (f"?name={NAME}&", "malformed"),
        (f"?name={NAME}%00", "the name must be"),
        (f"?name={name_of(epoch='4')}", "the name must be"),
        (f"?name={name_of(stack='ffffffff')}", "the name must be"),
        (f"?name={NAME}%ff", "malformed"),
    ],
)
async def test_a_query_that_could_be_read_in_two_ways_is_refused(
    proxy: Proxy, engine: RecordingEngine, query: str, word: str
) -> None:
    await assert_refused(
        proxy, engine, create_body(), word, target=f"/v1.41/containers/create{query}"
    )


async def test_a_refusal_shows_no_value_and_stays_on_one_line(
    proxy: Proxy, engine: RecordingEngine
) -> None:
    body = changed("Env", ["KEY=hidden-value"]) | {"x\nforged line\x1b" + "y" * 500: "hidden-value"}
    del body["Env"]
    reply = await proxy.create(body)
    assert reply.status == 403
    assert "hidden-value" not in reply.message
    assert "\n" not in reply.message
    assert len(reply.message) < 120
