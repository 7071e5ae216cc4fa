"""The disks of a stack, each a tmpfs of its own that can be full for a while.

Only root can mount; elsewhere no disk is made, and `why_not` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from stack.embedded.layout import Layout
from stack.embedded.postgres import postgres_part
from stack.install.everything import find_everything
from stack.settings import inherited_environment, load_settings
from tests.support.small_disk import fill_disk, free_disk, mount_disk, unmount_disk


@dataclass
class Disks:
    """By their names in a plan; none where they cannot be mounted."""

    data_dir: Path
    run_dir: Path
    places: dict[str, Path] = field(default_factory=dict)
    why_not: str = ""
    was_full: set[str] = field(default_factory=set)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def full(self, name: str) -> AsyncIterator[None]:
        """No room on a disk for the time of the block. Raises: NotFilled."""
        place = self.places[name]
        async with self._locks.setdefault(name, asyncio.Lock()):
            self.was_full.add(name)
            try:
                await asyncio.to_thread(fill_disk, place)
                yield
            finally:
                free_disk(place)


@contextlib.asynccontextmanager
async def small_disks(directory: Path) -> AsyncIterator[Disks]:
    """Disks in this directory for a stack that is about to be made, with PostgreSQL's cluster on
    its own."""
    disk, run_dir = directory / "disk", directory / "run"
    # not the mount's own root: a box's table of mounts has the path below that, by which the
    # census knows whose box it is
    data_dir = disk / directory.name / "data"
    try:
        mount_disk(disk, 0o711)
    except OSError as error:
        yield Disks(data_dir, run_dir, why_not=f"a tmpfs cannot be mounted: {error}")
        return
    places = {
        "data-disk": disk,
        "run-disk": run_dir,
        "postgres-disk": data_dir / "postgres",
        "store-disk": data_dir / "seaweedfs",
    }
    with contextlib.ExitStack() as mounted:
        mounted.callback(unmount_disk, disk)
        for name, mode in (("run-disk", 0o711), ("postgres-disk", 0o700), ("store-disk", 0o700)):
            mount_disk(places[name], mode)
            mounted.callback(unmount_disk, places[name])
        await _make_cluster(places["postgres-disk"])
        yield Disks(data_dir, run_dir, places)


async def _make_cluster(place: Path) -> None:
    """As the stack would, which does not take a directory that is there already for a new one."""
    settings = load_settings()
    layout = Layout(place / "making", place / "making")
    layout.data.mkdir()
    part = postgres_part(
        layout, find_everything(settings).postgres, settings.cache_root, inherited_environment()
    )
    assert part.prepare is not None
    await part.prepare()
    for path in layout.postgres.iterdir():
        path.rename(place / path.name)
    shutil.rmtree(layout.data)
