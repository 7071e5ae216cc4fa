"""Between the parts of a stack: the sidecar answers its api alone, and agents are nobody else's."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from sidecar.api_only import OPEN
from sidecar.app import create_app
from sidecar.providers.cloud import Cloud
from sidecar.settings import Settings
from tests.support.api.walking import METHODS, address, templates
from tests.support.paths import ROOT

SECRET = "the secret of one api"
WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": SECRET},
    {"Authorization": f"Basic {SECRET}"},
    {"Authorization": f"Bearer {SECRET} "},
    {"Authorization": "Bearer \u00fc"},
    {"X-Authorization": f"Bearer {SECRET}"},
]


@pytest.fixture
def sidecar(tmp_path: Path) -> FastAPI:
    """The sidecar's app, of which nothing is opened: whoever is refused needs nothing of it."""
    return create_app(
        Settings(
            sidecar_listen="unix:/nonexistent",
            sidecar_secret=SECRET,
            data_dir=tmp_path,
            run_dir=tmp_path,
            s3_endpoint="http://127.0.0.1:1",
            s3_access_key="none",
            s3_secret_key="none",
            gateway_control=tmp_path / "gateway",
            boxhost=tmp_path / "boxhost",
        )
    )


async def test_every_route_of_the_sidecar_but_health_needs_the_apis_secret(
    sidecar: FastAPI,
) -> None:
    walked = set(templates(sidecar.routes))
    assert len(walked) > 15
    paths = {address(template) for _, template in walked} | {"/no-such-route", "/docs"}
    assert "/openapi.json" in paths
    transport = httpx.ASGITransport(sidecar)
    async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as http:
        for path in paths:
            for method in METHODS:
                if (method, path) == OPEN:
                    continue
                for headers in WRONG:
                    sent = [(key.encode(), value.encode()) for key, value in headers.items()]
                    # a body that cannot be read is not looked at either
                    answer = await http.request(method, path, headers=sent, content=b"{")
                    assert answer.status_code == 401, (method, path, headers)
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        right = {"Authorization": f"Bearer {SECRET}"}
        assert (await http.get("/openapi.json", headers=right)).status_code == 200
        assert (await http.get("/no-such-route", headers=right)).status_code == 404


def test_compose_publishes_one_port_and_that_on_loopback() -> None:
    """As the file says it; tests/compose/test_config.py has it as compose reads it."""
    text = (ROOT / "docker-compose.yml").read_text()
    published = re.findall(r"^\s+ports:(.*)$", text, flags=re.M)
    assert published == [' ["127.0.0.1:${HOLDFAST_API_PORT:-8000}:8000"]']
    assert "network_mode: host" not in text
    assert {*re.findall(r"network_mode: (\S+)", text)} == {"none"}


def test_every_box_in_a_cloud_has_a_token_of_its_own() -> None:
    """Of its boxd, which is all that can be reached there, the agent's server by it alone."""
    one, other = (Cloud("s", "http://g", secret, b"g", 60) for secret in (b"one", b"other"))
    tokens = {cloud.token(key) for cloud in (one, other) for key in ("box-1", "box-2")}
    assert len(tokens) == 4
    assert all(len(bytes.fromhex(token)) == 32 for token in tokens)
    assert one.token("box-1") == one.token("box-1")
