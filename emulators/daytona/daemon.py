"""Daytona's daemon in a box, as far as others in there notice it: a process of the same user that
carries previews. Who stops it (a freeze of "everything", say) cuts the box off, as on the real one.
The toolbox is answered from outside.
"""

from __future__ import annotations

import asyncio

from emulators.boxes import Box, BoxFailed

PORT = 2280  # the real one's
START_SECONDS = 20
PROGRAM = """
import asyncio

async def pipe(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()

async def carry(reader, writer):
    port = int(await reader.readline())
    try:
        inward, outward = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.write(b"refused\\n")
    else:
        writer.write(b"carried\\n")
        await asyncio.gather(pipe(reader, outward), pipe(inward, writer))
        outward.close()
    writer.close()

async def main():
    server = await asyncio.start_server(carry, "127.0.0.1", %d)
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Daemon:
    def __init__(self, box: Box) -> None:
        self._box = box

    @classmethod
    async def start(cls, box: Box) -> Daemon:
        """Raises: BoxFailed, BoxNotRunning."""
        process = await box.exec(["python3", "-I", "-S", "-c", PROGRAM % PORT])
        try:
            async with asyncio.timeout(START_SECONDS):
                said = await process.stdout.readline()
        except TimeoutError as error:
            raise BoxFailed("the daemon does not start") from error
        if said != b"ready\n":
            raise BoxFailed(f"the daemon ended: {(await process.stderr.read()).decode()[-500:]}")
        return cls(box)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises: ConnectionError, BoxNotRunning."""
        reader, writer = await self._box.connect(PORT)
        writer.write(f"{port}\n".encode())
        if await reader.readline() != b"carried\n":
            writer.close()
            raise ConnectionRefusedError(f"nobody listens on port {port}")
        return reader, writer
