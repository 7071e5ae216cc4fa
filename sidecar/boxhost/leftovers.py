"""Ends every box and mount of a data directory."""

from __future__ import annotations

import sys
from pathlib import Path

from sidecar.boxhost.boxes import Boxes, BoxFailed
from sidecar.boxhost.mounts import Mounts


async def stop_all(data_dir: Path, run_dir: Path, bwrap: Path) -> None:
    """Says on stdout what there was."""
    all_boxes, all_mounts = Boxes(data_dir, run_dir, bwrap), Mounts(data_dir)
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
