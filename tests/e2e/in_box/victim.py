"""Runs in a box: leaves its word wherever a process can leave something, and waits.

    python3 victim.py WORD KEY PORT

Writes `ready.json` into its directory: what it could set up, and its pid.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

LIVES_SECONDS = 900
IPC_CREAT = 0o1000
PLACES = ("/tmp", "/dev/shm", "/workspace", "/home/agent")


def main(word: str, key: int, port: int) -> None:
    kernel = ctypes.CDLL(None, use_errno=True)
    up = []
    for place in PLACES:
        Path(place, word).write_text(word)
    tcp = socket.create_server(("127.0.0.1", port))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{word}")
    abstract.listen()
    named = socket.socket(socket.AF_UNIX)
    named.bind(f"/tmp/{word}.sock")
    named.listen()
    if kernel.shmget(key, 4096, IPC_CREAT | 0o666) >= 0:
        up.append("shared memory")
    if kernel.msgget(key, IPC_CREAT | 0o666) >= 0:
        up.append("message queue")
    queue = kernel.mq_open(f"/{word}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    if queue >= 0:
        up.append("posix queue")
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: Path("hit").write_text("a signal came"))
    Path("ready.new").write_text(json.dumps({"pid": os.getpid(), "up": up}))
    Path("ready.new").rename("ready.json")
    ends = time.monotonic() + LIVES_SECONDS
    while time.monotonic() < ends:
        time.sleep(1)
    for each in (tcp, abstract, named):
        each.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
