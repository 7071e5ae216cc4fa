from __future__ import annotations

import hashlib
import json
import stat
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stack.errors import DownloadFailed
from stack.install import geesefs
from stack.install.download import download
from stack.install.geesefs import find_geesefs, install_geesefs
from stack.install.progress import Silent
from tests.services import free_port
from tests.stack.conftest import MakeSettings

CONTENT = b"#!/bin/sh\necho geesefs\n" * 10_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Origin(ThreadingHTTPServer):
    """Serves CONTENT at /whole, half of it at /cut, a redirect at /moved."""

    daemon_threads = True
    hits = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.hits += 1
        name = self.path.rpartition("/")[2]
        if name == "moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
        elif name in ("whole", "cut"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT if name == "whole" else CONTENT[: len(CONTENT) // 2])
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def test_the_right_content_becomes_an_executable(origin: Origin, tmp_path: Path) -> None:
    target = tmp_path / "new" / "program"
    download(f"{origin.url}/moved", target, sha256=SHA256, progress=Silent())
    assert target.read_bytes() == CONTENT
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert [path.name for path in target.parent.iterdir()] == ["program"]


@pytest.mark.parametrize(
    ("name", "sha256", "message"),
    [
        ("whole", "0" * 64, "not the pinned"),
        ("cut", SHA256, "cut: "),
        ("missing", SHA256, "answered 404"),
    ],
)
def test_anything_else_leaves_no_file_behind(
    origin: Origin, tmp_path: Path, name: str, sha256: str, message: str
) -> None:
    target = tmp_path / "program"
    with pytest.raises(DownloadFailed, match=message):
        download(f"{origin.url}/{name}", target, sha256=sha256, progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nobody_listens_is_a_clear_error(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/program"
    with pytest.raises(DownloadFailed, match=r"refused|failed"):
        download(url, tmp_path / "program", sha256=SHA256, progress=Silent())


@pytest.fixture
def no_geesefs_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_geesefs_on_path")
class TestGeesefs:
    def test_it_is_downloaded_once_and_found_in_the_cache(
        self, origin: Origin, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(geesefs, "ASSETS", {"x86_64": ("x", SHA256), "aarch64": ("x", SHA256)})
        settings = make_settings(geesefs_url=f"{origin.url}/whole")
        first = install_geesefs(settings, Silent())
        assert first.path is not None
        assert first.path.read_bytes() == CONTENT
        assert install_geesefs(settings, Silent()) == first
        assert find_geesefs(make_settings()) == first
        assert origin.hits == 1

    def test_another_content_than_the_release_is_refused_and_weed_serves(
        self, origin: Origin, make_settings: MakeSettings
    ) -> None:
        found = install_geesefs(make_settings(geesefs_url=f"{origin.url}/whole"), Silent())
        assert found.path is None
        assert "not the pinned" in found.why

    def test_the_release_is_not_contacted_where_only_registries_may_be(
        self, origin: Origin, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(geesefs, "_BASE", origin.url)
        for settings in (make_settings(), make_settings(offline=False, ci="true")):
            found = install_geesefs(settings, Silent())
            assert found.path is None
            assert "only package registries" in found.why
        assert origin.hits == 0

    def test_a_failure_is_remembered_for_a_day(
        self, origin: Origin, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(geesefs, "_BASE", origin.url)
        settings = make_settings(offline=False)
        for _ in range(2):
            found = install_geesefs(settings, Silent())
            assert found.path is None
            assert "answered 404" in found.why
        assert origin.hits == 1
        memory = settings.cache_root / "geesefs" / "failed.json"
        record = json.loads(memory.read_text())
        memory.write_text(json.dumps(record | {"at": time.time() - geesefs.RETRY_SECONDS - 1}))
        install_geesefs(settings, Silent())
        assert origin.hits == 2

    def test_a_binary_that_is_named_wins(self, make_settings: MakeSettings) -> None:
        found = find_geesefs(make_settings(geesefs=Path("/bin/sh")))
        assert (found.path, found.why) == (Path("/bin/sh"), "HOLDFAST_GEESEFS")
