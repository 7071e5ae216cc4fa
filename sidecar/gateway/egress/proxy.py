"""One session's proxy: what it may reach is checked here, connection by connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import h11

from contracts.egress import Egress, permits
from sidecar.gateway.egress.addresses import (
    Address,
    Dialer,
    Policy,
    PublicOnly,
    Resolver,
    SystemResolver,
    dial,
)
from sidecar.gateway.egress.carry import forward, outgoing, tunnel
from sidecar.gateway.egress.tally import (
    BROKEN_OFF,
    BYTES_SPENT,
    FAILED,
    IDLE,
    REVOKED,
    Passage,
    Tally,
    Tell,
    Verdict,
)
from sidecar.gateway.egress.targets import Refused, Target, absolute_target, tunnel_target
from sidecar.gateway.egress.wire import CHUNK, Wire, close

logger = logging.getLogger(__name__)

HEAD_SECONDS = 15.0
LOOKUP_SECONDS = 10.0
CONNECT_SECONDS = 15.0
# Names that one session has looked up at a time: the threads for it are everyone's.
LOOKUPS = 4
# Addresses of one name that are tried; a name with more is somebody's idea of a joke.
MAX_ADDRESSES = 16
MAX_SHOWN = 253
_HOW = "The session's `egress` says what it may reach: off, allow (a list of hosts) or open."


class BytesSpent(Exception):
    """The session has moved as many bytes as a turn may."""


@dataclass(frozen=True)
class Allowed:
    """What a session may reach: by its mode, and its own hosts beside the stack's."""

    mode: Egress = "off"
    hosts: tuple[str, ...] = ()


NOTHING = Allowed()


@dataclass(frozen=True)
class Rules:
    """What holds for every session. `tunnels` at a time and `bytes` in a turn are per session,
    `total` tunnels are of all sessions together."""

    allow: tuple[str, ...] = ()
    ports: frozenset[int] = frozenset({80, 443})
    tunnels: int = 32
    total: int = 256
    bytes: int = 4 << 30
    idle_seconds: float = 300.0
    head_seconds: float = HEAD_SECONDS


@dataclass
class WayOut:
    """What the sessions' proxies share."""

    rules: Rules
    policy: Policy
    resolve: Resolver
    dial: Dialer
    open: int = field(default=0, init=False)

    @classmethod
    @contextlib.contextmanager
    def of_this_machine(cls, rules: Rules) -> Iterator[WayOut]:
        """To public addresses, by the machine's own resolver."""
        with SystemResolver.open() as resolve:
            yield cls(rules, PublicOnly(), resolve, dial)


class Proxy:
    """`tell` is told of what went through it; `allowed` holds until a turn begins."""

    def __init__(
        self, session_id: str, way: WayOut, tell: Tell, allowed: Allowed = NOTHING
    ) -> None:
        self._session_id = session_id
        self._way = way
        self._rules = way.rules
        self._tally = Tally(tell)
        self._allowed = allowed
        self._left = way.rules.bytes
        self._open: dict[Passage, asyncio.Task[object]] = {}
        self._lookups = asyncio.Semaphore(LOOKUPS)

    def protocol(self) -> asyncio.Protocol:
        """For one connection."""
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=CHUNK), self._serve)

    def begin_turn(self, allowed: Allowed) -> None:
        """From now on this holds, also for what is open already."""
        self._tally.begin_turn()
        self._allowed = allowed
        self._left = self._rules.bytes
        for passage, task in self._open.items():
            if not self._covers(passage.host):
                task.cancel()

    def flush(self) -> None:
        """Tell what was not told yet: the turn ends."""
        self._tally.flush()

    def close(self) -> None:
        """Tell the rest, and from then on nothing: the session may be gone."""
        self._tally.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = Wire(h11.SERVER, reader, writer)
        passage = Passage()
        verdict: Verdict = "allowed"
        reason = ""
        try:
            async with self._admitted(here, passage) as (target, request):
                reason = await self._carry(here, target, request, passage)
        except asyncio.CancelledError:
            reason = REVOKED
            writer.transport.abort()
            raise
        except Refused as refused:
            verdict, reason = "refused" if refused.status < 500 else "allowed", refused.reason
            with contextlib.suppress(OSError, TimeoutError):
                await here.refuse(refused)
        except Exception:  # the boundary: one connection must not be an unseen failure
            logger.exception("session=%s egress failed", self._session_id)
            reason = FAILED
        finally:
            self._tally.ended(passage, verdict, reason)
            logger.info(
                "session=%s egress=%s host=%s port=%s up=%d down=%d",
                self._session_id,
                verdict,
                passage.host or "-",
                passage.port or "-",
                passage.up,
                passage.down,
            )
            await close(writer)

    @contextlib.asynccontextmanager
    async def _admitted(
        self, here: Wire, passage: Passage
    ) -> AsyncIterator[tuple[Target, h11.Request]]:
        """What is asked for, once it is sure that it may be had. Raises: Refused."""
        request = await _request(here, self._rules.head_seconds)
        passage.method = request.method.decode("ascii")
        asked = request.target.decode("ascii", "replace")
        passage.host = _shown(asked)
        target, path = _target(passage.method, asked)
        passage.host, passage.port = target.host, target.port
        if passage.method != "CONNECT":
            request = outgoing(request, target, path)
        elif {b"content-length", b"transfer-encoding"}.intersection(n for n, _ in request.headers):
            raise Refused(400, "bad_framing", "a CONNECT has no body")
        self._check(target)
        with self._place(passage):
            yield target, request

    def _check(self, target: Target) -> None:
        """Raises: Refused."""
        if self._allowed.mode == "off":
            raise Refused(403, "egress_off", "off for this session", _HOW)
        if not self._covers(target.host):
            raise Refused(403, "egress_host", f"{target.host} is not on the allow-list", _HOW)
        if target.port not in self._rules.ports:
            hint = "HOLDFAST_EGRESS_PORTS has those that are."
            raise Refused(403, "egress_port", f"port {target.port} is not open", hint)
        if self._left <= 0:
            raise _spent()

    def _covers(self, host: str) -> bool:
        listed = permits((*self._rules.allow, *self._allowed.hosts), host)
        return self._allowed.mode == "open" or (self._allowed.mode == "allow" and listed)

    @contextlib.contextmanager
    def _place(self, passage: Passage) -> Iterator[None]:
        """Raises: Refused, when there are too many connections."""
        if len(self._open) >= self._rules.tunnels or self._way.open >= self._rules.total:
            raise Refused(429, "egress_busy", "too many connections at a time", "Close some.")
        task = asyncio.current_task()
        assert task is not None
        self._open[passage] = task
        self._way.open += 1
        try:
            yield
        finally:
            del self._open[passage]
            self._way.open -= 1

    async def _carry(
        self, here: Wire, target: Target, request: h11.Request, passage: Passage
    ) -> str:
        """Why it ended before its time; nothing when it did not. Raises: Refused."""

        def up(count: int) -> None:
            passage.up += count
            self._spend(count)

        def down(count: int) -> None:
            passage.down += count
            self._spend(count)

        addresses = await self._addresses(target)
        self._check(target)  # once more: a turn may have begun meanwhile
        reader, writer = await self._connect(target, addresses)
        self._tally.opened(passage)
        there = Wire(h11.CLIENT, reader, writer, up, down)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._rules.idle_seconds) as idle:

                def moved() -> None:
                    if not idle.expired():
                        idle.reschedule(loop.time() + self._rules.idle_seconds)

                if passage.method == "CONNECT":
                    await tunnel(here, there, up, down, moved)
                else:
                    await forward(here, there, request, moved)
        except (TimeoutError, OSError, BytesSpent, h11.ProtocolError) as error:
            return _why(error)
        finally:
            await close(writer)
        return ""

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise BytesSpent

    async def _addresses(self, target: Target) -> Sequence[Address]:
        """Where it leads, all of it checked. Raises: Refused."""
        found: Sequence[Address] = [target.address] if target.address else await self._look(target)
        for address in found:
            why = self._way.policy.refuses(address, target.port)
            if why:
                reason = f"{target.host} leads to an address that is refused: {why}"
                raise Refused(403, "egress_address", reason, "Only public addresses are reached.")
        return found

    async def _look(self, target: Target) -> list[Address]:
        try:
            async with asyncio.timeout(LOOKUP_SECONDS), self._lookups:
                found = await self._way.resolve(target.host)
            if found:
                return [ip_address(each) for each in found[:MAX_ADDRESSES]]
        except (OSError, TimeoutError, ValueError):
            pass
        raise Refused(502, "egress_lookup", f"no address is known for {target.host}")

    async def _connect(
        self, target: Target, addresses: Sequence[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the first of these very addresses that answers. Raises: Refused."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                for address in addresses:
                    with contextlib.suppress(ConnectionError, OSError):
                        there = await self._way.dial(address, target.port)
                        return await asyncio.open_connection(sock=there, limit=CHUNK)
        raise Refused(502, "egress_unreachable", f"{target.host} does not answer")


async def _request(here: Wire, within: float) -> h11.Request:
    """Raises: Refused."""
    try:
        async with asyncio.timeout(within):
            event = await here.next_event()
    except h11.RemoteProtocolError as error:
        status = error.error_status_hint
        raise Refused(status, "bad_request", "the request is malformed or too long") from None
    except TimeoutError:
        raise Refused(408, "too_slow", "the request did not arrive in time") from None
    except OSError:
        event = None
    if not isinstance(event, h11.Request):
        raise Refused(400, "bad_request", "the request was cut off")
    return event


def _target(method: str, asked: str) -> tuple[Target, str]:
    if method == "CONNECT":
        return tunnel_target(asked), ""
    return absolute_target(asked)


def _shown(asked: str) -> str:
    """The host in what may be no proper target; nothing of what may be secret in one."""
    rest = asked.rpartition("://")[2] if asked.lower().startswith("http") else asked
    return re.split(r"[/?#\\]", rest)[0].rpartition("@")[2][:MAX_SHOWN]


def _spent() -> Refused:
    return Refused(
        403,
        "egress_bytes",
        BYTES_SPENT,
        "HOLDFAST_EGRESS_BYTES is the limit; the next turn begins anew.",
    )


def _why(error: Exception) -> str:
    if isinstance(error, BytesSpent):
        return BYTES_SPENT
    return IDLE if isinstance(error, TimeoutError) else BROKEN_OFF
