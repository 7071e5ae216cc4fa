"""Health check of a service: exit 0 when it answers 200.

python healthy.py http://127.0.0.1:8000/healthz
python healthy.py unix:/run/holdfast/control/gateway.sock /healthz
"""

from __future__ import annotations

import http.client
import socket
import sys
from urllib.parse import urlsplit

SECONDS = 5


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("service", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        self.sock.connect(self._path)


def main() -> None:
    address = sys.argv[1]
    connection: http.client.HTTPConnection
    if address.startswith("unix:"):
        connection, path = UnixConnection(address.removeprefix("unix:")), sys.argv[2]
    else:
        url = urlsplit(address)
        connection = http.client.HTTPConnection(url.netloc, timeout=SECONDS)
        path = url.path
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except OSError as error:
        sys.exit(f"{address} does not answer: {error}")
    if status != http.HTTPStatus.OK:
        sys.exit(f"{address} answers {status}")


if __name__ == "__main__":
    main()
