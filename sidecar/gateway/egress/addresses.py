"""Which addresses may be connected to, and the connecting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Protocol

Address = IPv4Address | IPv6Address
# The addresses that a name has now. Raises: OSError.
Resolver = Callable[[str], Awaitable[Sequence[str]]]
# A connection to just this address. Raises: OSError.
Dialer = Callable[[Address, int], Awaitable[socket.socket]]

# Apart from asyncio's own threads: those look up the model API, which must not wait for a sandbox
# that asks for slow names.
_LOOKUPS = 16

# IANA's special-purpose registries, and what embeds an IPv4 address, where another check would have
# to look for it. Said in full: Python's own `is_global` differs from release to release.
_REFUSED = {
    ip_network(block): reason
    for block, reason in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared by a provider's customers",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "a cloud's metadata service",  # Azure's has a public address
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved",
        "192.0.2.0/24": "for documentation",
        "192.31.196.0/24": "reserved",
        "192.52.193.0/24": "reserved",
        "192.88.99.0/24": "a relay to embedded addresses",
        "192.168.0.0/16": "private",
        "192.175.48.0/24": "reserved",
        "198.18.0.0/15": "for benchmarks",
        "198.51.100.0/24": "for documentation",
        "203.0.113.0/24": "for documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::ffff:0:0/96": "an embedded IPv4 address",
        "::/96": "an embedded IPv4 address",
        "::ffff:0:0:0/96": "an embedded IPv4 address",
        "64:ff9b::/96": "an embedded IPv4 address",
        "64:ff9b:1::/48": "an embedded IPv4 address",
        "100::/64": "reserved",
        "2001::/32": "an embedded IPv4 address",
        "2001::/23": "reserved",
        "2001:db8::/32": "for documentation",
        "2002::/16": "an embedded IPv4 address",
        "2620:4f:8000::/48": "reserved",
        "3fff::/20": "for documentation",
        "fc00::/7": "private",
        "fe80::/10": "link-local",
        "fec0::/10": "private",
        "ff00::/8": "multicast",
    }.items()
}
_GLOBAL_UNICAST = ip_network("2000::/3")
_ISATAP = 0x5EFE  # before the last 32 bits of an IPv6 address, which are an IPv4 address then


class Policy(Protocol):
    def refuses(self, address: Address, port: int) -> str:
        """Why the address must not be connected to; nothing when it may."""
        ...


class PublicOnly:
    """Public addresses of other machines. `is_own` says whether an address is this machine's: what
    listens here for everyone would take the gateway for a neighbour."""

    def __init__(self, is_own: Callable[[Address], bool] | None = None) -> None:
        self._is_own = is_own or _is_own

    def refuses(self, address: Address, port: int) -> str:
        for block, reason in _REFUSED.items():
            if address.version == block.version and address in block:
                return reason
        if isinstance(address, IPv6Address):
            if address.scope_id is not None:
                return "link-local"
            if address not in _GLOBAL_UNICAST:
                return "reserved"
            if (int(address) >> 32) & 0xFDFF_FFFF == _ISATAP:
                return "an embedded IPv4 address"
        if not address.is_global:
            return "not public"
        return "an address of this machine" if self._is_own(address) else ""


def _is_own(address: Address) -> bool:
    """Whether the route to an address begins and ends there. Nothing is sent: connecting a
    datagram socket only chooses the route."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # no way there: connecting will say so
        return bool(probe.getsockname()[0] == str(address))


class SystemResolver:
    """The machine's own, in threads that nothing else uses."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[SystemResolver]:
        threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="lookup")
        try:
            yield cls(threads)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, name: str) -> list[str]:
        # With the dot the name is complete: none of the machine's search domains is tried on it.
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _lookup, f"{name}.")
        return list(dict.fromkeys(found))


def _lookup(name: str) -> list[str]:
    # AI_ADDRCONFIG: no IPv6 addresses on a machine that has none itself
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(address[0]) for _, _, _, _, address in found]


async def dial(address: Address, port: int) -> socket.socket:
    """Connect to an address as it is: there is no name here that could be looked up again."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    # The protocol is said aloud: asyncio sets TCP_NODELAY only on a socket that knows it.
    there = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    there.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(there, (str(address), port))
    except BaseException:
        there.close()
        raise
    return there
