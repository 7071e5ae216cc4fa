"""The directories that sandboxes make their sockets in.

Whoever may write to their parent could put a link in the place of one, and have any directory of
the host bound into a sandbox. So the proxy makes them, and the sidecar may not.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class BoxDirectories:
    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def make(self, box: str) -> None:
        """For our group, which is the sandboxes' own. One that is there stays."""
        place = self._parent / box
        place.mkdir(exist_ok=True)
        place.chmod(0o770)  # whatever our umask

    def remove(self, box: str) -> None:
        shutil.rmtree(self._parent / box, ignore_errors=True)
