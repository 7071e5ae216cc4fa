"""A server that downloads come from."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONTENT = b"#!/bin/sh\necho geesefs\n" * 10_000


SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Origin(ThreadingHTTPServer):
    """Serves CONTENT at /whole, half of it at /cut, a redirect at /moved."""

    daemon_threads = True
    hits = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Origin

    def do_GET(self) -> None:
        self.server.hits += 1
        name = self.path.rpartition("/")[2]
        if name == "moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.end_headers()
        elif name in ("whole", "cut"):
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT if name == "whole" else CONTENT[: len(CONTENT) // 2])
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)
