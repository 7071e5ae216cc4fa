"""Unix sockets that are private from their first moment on."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def private_socket(path: Path) -> socket.socket:
    """A bound socket at `path`, mode 0600. What was there before must be gone."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)  # no one may connect before a chmod
    try:
        listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def is_served(path: Path) -> bool:
    """Whether a process listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
