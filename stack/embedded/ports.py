"""Ports: SeaweedFS's own are chosen once and kept, the api's is the user's choice."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.embedded.files import read_json, write_json
from stack.errors import PortTaken
from stack.settings import Settings

LOOPBACK = "127.0.0.1"
# SeaweedFS's gRPC is always 10000 above; both stay below the kernel's range for outgoing
# connections, which starts at 32768.
GRPC_OFFSET = 10_000
_LOWEST, _HIGHEST = 12_000, 22_000
_ATTEMPTS = 500
# Between the choice of a port and the bind of the program that gets it, another stack on this
# machine must not choose it too. An abstract socket of the port's name is taken atomically, and is
# let go by the kernel when this process ends.
_claims: dict[int, int] = {}  # port -> file descriptor


@dataclass(frozen=True)
class StorePorts:
    master: int
    volume: int
    filer: int
    s3: int


def store_ports(path: Path) -> StorePorts:
    """The ports of last time while they are free, else new ones, written to `path`."""
    kept = _read(path)
    if kept is not None and all(_claim(port, GRPC_OFFSET) for port in asdict(kept).values()):
        return kept
    chosen = StorePorts(*sorted(claim_port(GRPC_OFFSET) for _ in range(4)))
    write_json(path, asdict(chosen))
    return chosen


def claim_port(offset: int = 0) -> int:
    """Choose a free loopback port that no other claim of this machine gets while this process
    lives; with `offset`, one whose port + `offset` is free and claimed as well.

    Raises:
        PortTaken: there is none.
    """
    for _ in range(_ATTEMPTS):
        port = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - any will do
        if _claims.keys().isdisjoint({port, port + offset}) and _claim(port, offset):
            return port
    raise PortTaken(
        f"no free ports between {_LOWEST} and {_HIGHEST + offset}",
        hint="end processes that listen there",
    )


def check_api_port(settings: Settings) -> None:
    """See that the api will be able to listen.

    Raises:
        PortTaken: it will not.
    """
    host, port = settings.api_host, settings.api_port
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = holder_of(port)
            raise PortTaken(
                f"port {port} on {host} is taken" + (f" by {holder}" if holder else ""),
                hint=f"stop that process, or set HOLDFAST_API_PORT (in .env or the environment) "
                f"to a free port, for example {free_port_near(host, port)}",
                port=port,
            ) from None
        raise PortTaken(
            f"the api cannot listen on {host}:{port}: {error.strerror or error}",
            hint="set HOLDFAST_API_HOST and HOLDFAST_API_PORT to an address of this machine",
            port=port,
        ) from None


def free_port_near(host: str, port: int) -> int:
    """The next port that is free now, as a suggestion."""
    for candidate in range(port + 1, min(port + 100, 65_536)):
        if is_free(candidate, host):
            return candidate
    return port


def is_free(port: int, host: str = LOOPBACK) -> bool:
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def holder_of(port: int) -> str:
    """Who listens on `port`, as far as /proc tells this user; "" when it does not."""
    inodes = _listening_inodes(port)
    for directory in Path("/proc").glob("[0-9]*"):
        if inodes.isdisjoint(_open_files(directory)):
            continue
        try:
            words = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            words = []
        command = b" ".join(words).decode("utf-8", "replace").strip()
        return f"pid {directory.name} ({command[:60]})"
    return ""


def _open_files(process: Path) -> set[str]:
    """What its descriptors point to; empty for another user's process or one that has ended."""
    found = set()
    try:
        for link in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(str(link.readlink()))
    except OSError:
        return set()
    return found


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
        except OSError:
            continue
        # column 1 is address:port in hexadecimal, 3 the state (0A: listening), 9 the inode
        inodes |= {
            f"socket:[{row[9]}]"
            for row in rows
            if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
        }
    return inodes


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # as servers do: connections of the last run that linger do not count
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)


def _claim(port: int, offset: int) -> bool:
    """Whether the port, and the one at `offset` from it, are free and now ours."""
    wanted = {port, port + offset}
    new: dict[int, socket.socket] = {}
    for each in wanted - _claims.keys():
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        new[each] = claim
        try:
            claim.bind(f"\0holdfast-port-{each}")
        except OSError:
            break
    else:
        if all(is_free(each) for each in wanted):
            _claims.update({each: claim.detach() for each, claim in new.items()})
            return True
    for claim in new.values():
        claim.close()
    return False


def _read(path: Path) -> StorePorts | None:
    found = read_json(path)
    names = StorePorts.__dataclass_fields__.keys()
    if not isinstance(found, dict) or found.keys() != names:
        return None
    if not all(isinstance(port, int) and 0 < port < 55_536 for port in found.values()):
        return None
    return StorePorts(**found)
