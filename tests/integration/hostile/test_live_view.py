"""The live view of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import HoldfastError, InvalidInput
from sidecar.boxhost.host_files import HostFiles
from sidecar.workspace import live


class Manifests:
    async def latest(self, session_id: str) -> None:
        return None


class Seen:
    """As much of a workspace as its live view needs."""

    session_id = "s"
    manifests = Manifests()
    engine = type("E", (), {"mtime_grain_ns": 1})

    def __init__(self, files: HostFiles) -> None:
        self.files = files


async def test_the_live_view_is_paged_and_takes_no_foreign_cursor(tmp_path: Path) -> None:
    names = [f"{number:02}" for number in range(7)]
    for name in names:
        (tmp_path / name).touch()
    files = HostFiles(tmp_path)
    workspace: Any = Seen(files)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await live.listing(workspace, "", 2, cursor)
        assert len(page.entries) <= 2
        found += [entry.name for entry in page.entries]
        cursor = page.next_cursor
    assert (found, cursor) == (names, None)
    first = (await live.listing(workspace, "", 2)).next_cursor
    for foreign in ("x", "", "W10=", "bnVsbA==", "é", "A" * 5000):
        with pytest.raises(InvalidInput):
            await live.listing(workspace, "", 2, foreign)
    with pytest.raises(HoldfastError):
        await live.listing(workspace, "elsewhere", 2, first)
    await files.close()
