"""`python -m sidecar.boxhost stop-all`: end every box and mount of this data directory.

The stack calls it when it stops, and before it starts, to clear what a crash left behind.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from sidecar.boxhost.boxes import Boxes, BoxFailed
from sidecar.boxhost.mounts import Mounts


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore")

    data_dir: Path
    run_dir: Path
    bwrap: Path


async def stop_all(settings: Settings) -> None:
    all_boxes, all_mounts = (
        Boxes(settings.data_dir, settings.run_dir, settings.bwrap),
        Mounts(settings.data_dir),
    )
    mounts = 0
    try:
        boxes = await all_boxes.stop_all()
    except BoxFailed:
        # A process that waits for a hanging file system cannot die before the daemon does.
        mounts = await all_mounts.stop_all(gently=False)
        boxes = await all_boxes.stop_all()
    mounts += await all_mounts.stop_all()
    if boxes or mounts:
        sys.stdout.write(f"ended {boxes} boxes and {mounts} mounts\n")


def main() -> None:
    if sys.argv[1:] != ["stop-all"]:
        sys.exit("usage: python -m sidecar.boxhost stop-all")
    asyncio.run(stop_all(Settings()))


if __name__ == "__main__":
    main()
