"""The port proxy in front of a real box."""

from __future__ import annotations

import hashlib
import secrets
import time

import httpx

from emulators.boxes import Box
from emulators.http_server import http_server
from tests.support.emulators.in_box import WITHIN, python
from tests.support.emulators.port_proxy import proxy

HTTP_SERVER = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 7002), Echo)
print("ready")
server.serve_forever()
"""


async def test_large_bodies_go_through_a_real_box_unharmed(shared_box: Box) -> None:
    server = await python(shared_box, HTTP_SERVER)
    data = secrets.token_bytes(8 << 20)
    app = proxy(lambda: shared_box.connect(7002))
    async with (
        http_server(app, "127.0.0.1") as url,
        httpx.AsyncClient(timeout=WITHIN, trust_env=False) as client,
    ):
        began = time.monotonic()
        found = await client.put(f"{url}/x", content=data)
        assert found.status_code == 201
        assert hashlib.sha256(found.content).digest() == hashlib.sha256(data).digest()
        assert time.monotonic() - began < WITHIN
        await server.kill()
        assert (await client.put(f"{url}/x", content=b"")).text == "ConnectionRefusedError"
