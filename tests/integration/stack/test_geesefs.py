"""Where geesefs comes from."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stack.install import geesefs
from stack.install.geesefs import find_geesefs, install_geesefs
from stack.install.progress import Silent
from tests.support.stack.fixtures import MakeSettings
from tests.support.stack.origin import CONTENT, SHA256, Origin


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
