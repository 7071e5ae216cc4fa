"""What is held open, while processes come and go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sidecar.boxhost import open_files


def test_a_process_that_is_ending_is_gone_and_says_nothing_of_its_namespace() -> None:
    with subprocess.Popen(["true"]) as child:
        # ended and not yet waited for: it has left its namespaces, and its number is still there
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{child.pid}").exists()
        with pytest.raises(ProcessLookupError):
            list(open_files.mount_ids(str(child.pid), os.makedev(0, 1)))
