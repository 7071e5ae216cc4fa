"""Unix sockets that are private from their first moment on."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def private_socket(path: Path) -> socket.socket:
    """A bound socket at `path`, mode 0600. What was there before must be gone."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux creates the path with the mode of the socket: no one may connect before a chmod,
        # and a umask would be that of every thread.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(path))
    except OSError:
        listening.close()
        raise
    return listening


def is_served(path: Path) -> bool:
    """Whether a process listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
