"""The directory of a sandbox's sockets is the sandbox's to write to."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from sidecar.providers.boxd import BoxSocket, BySocket, NoAnswer


def listening(path: Path) -> socket.socket:
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    there.bind(str(path))
    there.listen()
    return there


@pytest.mark.parametrize("name", ["control.sock", "agent.sock"])
@pytest.mark.parametrize("target", ["postgres.sock", "box/real.sock", "missing"])
def test_a_link_to_a_socket_of_the_host_is_not_opened(
    short_dir: Path, name: str, target: str
) -> None:
    box = short_dir / "box"
    box.mkdir()
    with listening(short_dir / "postgres.sock"), listening(box / "real.sock"):
        (box / name).symlink_to(short_dir / target)
        with pytest.raises(NoAnswer):
            BoxSocket(box / name)


@pytest.mark.parametrize("kind", ["file", "directory", "fifo"])
def test_what_is_no_socket_is_not_opened(short_dir: Path, kind: str) -> None:
    place = short_dir / "control.sock"
    if kind == "file":
        place.touch()
    elif kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    with pytest.raises(NoAnswer):
        BoxSocket(place)


async def test_a_socket_that_is_swapped_for_a_link_afterwards_is_still_the_same(
    short_dir: Path,
) -> None:
    reached: list[str] = []

    def serving(name: str) -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(name)
            await reader.readline()
            writer.write(b'{"size": 0}\n')
            writer.close()

        return serve

    own, foreign = short_dir / "control.sock", short_dir / "postgres.sock"
    one = await asyncio.start_unix_server(serving("own"), own)  # type: ignore[arg-type]
    other = await asyncio.start_unix_server(serving("foreign"), foreign)  # type: ignore[arg-type]
    async with one, other:
        opened = BoxSocket(own)
        own.rename(short_dir / "moved.sock")
        own.symlink_to(foreign)
        await BySocket(opened).call("spawn", bound=10)
        opened.close()
    assert reached == ["own"]
