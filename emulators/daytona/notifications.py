"""The gateway that tells SDKs about changes: Socket.IO 5 over Engine.IO 4, WebSocket only.

An SDK that cannot connect polls instead, once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

PING_SECONDS = 25
# Engine.IO packet types, and Socket.IO ones behind the Engine.IO "message"
OPEN, PING, PONG = "0", "2", "3"
CONNECT, DISCONNECT, EVENT, CONNECT_ERROR = "40", "41", "42", "44"


class Notifications:
    def __init__(self, key: str) -> None:
        self._key = key
        self._listeners: set[asyncio.Queue[str]] = set()

    def tell(self, event: str, data: Any) -> None:
        packet = EVENT + json.dumps([event, data])
        for listener in self._listeners:
            listener.put_nowait(packet)

    async def serve(self, socket: WebSocket) -> None:
        """One connection, to its end."""
        await socket.accept()
        hello = {
            "sid": secrets.token_hex(10),
            "upgrades": [],
            "pingInterval": PING_SECONDS * 1000,
            "pingTimeout": 20_000,
            "maxPayload": 1_000_000,
        }
        with contextlib.suppress(WebSocketDisconnect):
            await socket.send_text(OPEN + json.dumps(hello))
            asked = await socket.receive_text()
            if not asked.startswith(CONNECT) or json.loads(asked[2:])["token"] != self._key:
                await socket.send_text(CONNECT_ERROR + json.dumps({"message": "Unauthorized"}))
                await socket.close()
                return
            await socket.send_text(CONNECT + json.dumps({"sid": secrets.token_hex(10)}))
            await self._talk(socket)

    async def _talk(self, socket: WebSocket) -> None:
        packets: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(packets)
        sending = asyncio.create_task(_send(socket, packets))
        try:
            while await socket.receive_text() != DISCONNECT:
                pass
        finally:
            self._listeners.discard(packets)
            sending.cancel()
            await asyncio.wait({sending})


async def _send(socket: WebSocket, packets: asyncio.Queue[str]) -> None:
    while True:
        try:
            async with asyncio.timeout(PING_SECONDS):
                packet = await packets.get()
        except TimeoutError:
            packet = PING
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it has been closed
            await socket.send_text(packet)
