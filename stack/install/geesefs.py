"""geesefs, the FUSE client over S3: found, downloaded where that is possible, or done without.

It is in no package registry, so its absence is normal: `weed mount` serves instead.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from stack.errors import DownloadFailed
from stack.install.cache import exclusive, make_cache
from stack.install.download import download
from stack.install.progress import Progress
from stack.settings import Settings

RELEASE = "v0.43.7"
_BASE = f"https://github.com/yandex-cloud/geesefs/releases/download/{RELEASE}"
# machine -> (asset, sha256)
ASSETS = {
    "x86_64": (
        "geesefs-linux-amd64",
        "a81e368d0cbd1f83d190cacdc396fc950ea9412085504b82546b01122c2f7e03",
    ),
    "aarch64": (
        "geesefs-linux-arm64",
        "c8a29e16b51fc895f99fa986c16557273d0469a50a1462823b46e087f250ac49",
    ),
}
# Where the release cannot be reached, every start would pay for the attempt.
RETRY_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Geesefs:
    """`why` says where it is from, or why there is none."""

    path: Path | None
    why: str


def find_geesefs(settings: Settings) -> Geesefs:
    """Where geesefs is, without contacting anything."""
    if settings.geesefs is not None:
        return Geesefs(settings.geesefs, "HOLDFAST_GEESEFS")
    if on_path := shutil.which("geesefs"):
        return Geesefs(Path(on_path), "PATH")
    cached = _cached(settings)
    if cached.is_file():
        return Geesefs(cached, f"release {RELEASE}, in the cache")
    return Geesefs(None, _reason(settings))


def install_geesefs(settings: Settings, progress: Progress) -> Geesefs:
    """Where geesefs is, after one attempt to download it where that is allowed.

    A failure is remembered for a day and is not an error.
    """
    found = find_geesefs(settings)
    if found.path is not None or settings.workspace == "weed" or not _may_try(settings):
        return found
    asset, sha256 = ASSETS[platform.machine()]
    url = settings.geesefs_url or f"{_BASE}/{asset}"
    target = _cached(settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    make_cache(settings.cache_root)
    with exclusive(target.parent / ".lock", progress):
        if not target.is_file():
            try:
                download(url, target, sha256=sha256, progress=progress)
            except DownloadFailed as error:
                _remember_failure(settings, error.message)
                progress.say(f"geesefs could not be downloaded, weed serves: {error.message}")
    return find_geesefs(settings)


def _may_try(settings: Settings) -> bool:
    if platform.machine() not in ASSETS:
        return False
    if settings.geesefs_url is not None:
        return True
    return not settings.registries_only and _recent_failure(settings) is None


def _reason(settings: Settings) -> str:
    if platform.machine() not in ASSETS:
        return f"there is no release for {platform.machine()}"
    if failure := _recent_failure(settings):
        return f"the download failed: {failure}"
    if settings.registries_only and settings.geesefs_url is None:
        return "not on PATH, and only package registries may be contacted"
    return "not on PATH and not downloaded yet"


def _cached(settings: Settings) -> Path:
    return settings.cache_root / "geesefs" / RELEASE / "geesefs"


def _failure_file(settings: Settings) -> Path:
    return settings.cache_root / "geesefs" / "failed.json"


def _remember_failure(settings: Settings, reason: str) -> None:
    record = json.dumps({"at": time.time(), "release": RELEASE, "reason": reason})
    _failure_file(settings).write_text(record, encoding="utf-8")


def _recent_failure(settings: Settings) -> str | None:
    try:
        record = json.loads(_failure_file(settings).read_text(encoding="utf-8"))
        recent = record["release"] == RELEASE and time.time() - record["at"] < RETRY_SECONDS
        return str(record["reason"]) if recent else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
