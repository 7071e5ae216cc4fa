"""Trials of the matrix: one session each, which must survive its sandbox, or a move.

What is compared was drawn at random inside the sandbox, so nothing but the workspace can have
carried it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from client.holdfast import Holdfast
from client.residue import named, processes_in
from client.settings import Store
from contracts import errors
from contracts.events import (
    TURN_END_TYPES,
    Event,
    Message,
    Receipt,
    SandboxReady,
    ToolResult,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
)

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

log = logging.getLogger(__name__)

Engine = Literal["auto", "geesefs", "weed", "checkpoint"]

STEPS = ("write", "store", "kill", "read back", "transcript", "clean")

FILE = "random.bin"
SIZE = 4096
# One command a line: the scripted model takes the rest of the line as the command.
WRITE = f"""\
run: head -c {SIZE} /dev/urandom > {FILE}
run: sha256sum {FILE}
run: readlink /proc/self/ns/pid"""
# The salt is new: an answer remembered from the first turn would not do.
READ_BACK = f"""\
run: sha256sum {FILE}
run: printf %s {{salt}} | cat {FILE} - | sha256sum
run: readlink /proc/self/ns/pid"""
# What is asked of whoever goes on with a session: only the conversation has the word.
REMEMBER, RECALL = "remember {word}", "recall"
# A cold opencode on a loaded machine needs most of a minute.
TURN_SECONDS = 240
GONE_SECONDS = 30
DISCARD_SECONDS = 60


class CheckFailed(Exception):
    """A promise that did not hold."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckFailed(otherwise)


@dataclass(frozen=True)
class Bucket:
    """The session bucket, read past the api."""

    s3: S3Client
    name: str

    async def read(self, session_id: UUID, path: str) -> bytes:
        answer = await self.s3.get_object(Bucket=self.name, Key=f"{session_id}/{path}")
        async with answer["Body"] as body:
            return bytes(await body.read())

    async def count(self, session_id: UUID) -> int:
        answer = await self.s3.list_objects_v2(Bucket=self.name, Prefix=f"{session_id}/")
        return answer["KeyCount"]


@asynccontextmanager
async def open_bucket(store: Store) -> AsyncIterator[Bucket]:
    # Half a second to import, and of all commands only the matrix needs it.
    import aioboto3
    from aiobotocore.config import AioConfig

    async with aioboto3.Session().client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.access_key,
        aws_secret_access_key=store.secret_key.get_secret_value(),
        region_name="us-east-1",
        config=AioConfig(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            connect_timeout=5,
            read_timeout=30,
        ),
    ) as s3:
        yield Bucket(s3, store.bucket)


@dataclass(frozen=True)
class Place:
    """Who works, and where. Without a model it is the harness's own choice."""

    harness: str
    provider: str
    model: str | None = None


@dataclass(frozen=True)
class How:
    """`engine` is what receipts must name. `elsewhere`: this may not be the stack's host, so that
    a local sandbox's processes are looked at only where they can be seen."""

    engine: Engine = "auto"
    elsewhere: bool = False


PLAIN = How()


class Trial:
    """One session on its way through the six steps."""

    def __init__(self, hf: Holdfast, bucket: Bucket, place: Place, how: How) -> None:
        self.hf = hf
        self.bucket = bucket
        self.harness = place.harness
        self.provider = place.provider
        self.model = place.model
        self.wanted_engine = how.engine
        self.elsewhere = how.elsewhere
        self.engine: str | None = None
        self.session_id: UUID | None = None
        self.turns: list[list[Event]] = []
        self.namespaces: list[str] = []
        self.content = b""

    def steps(self) -> Sequence[tuple[str, Callable[[UUID], Awaitable[None]]]]:
        made = (self.write, self.store, self.kill, self.read_back, self.transcript, self.clean)
        return list(zip(STEPS, made, strict=True))

    async def begin(self) -> UUID:
        session = await self.hf.sessions.create(
            title=f"matrix {self.harness} on {self.provider}",
            harness=self.harness,
            provider=self.provider,
            model=self.model,
            permissions="auto",
        )
        self.session_id = session.id
        return session.id

    async def write(self, sid: UUID) -> None:
        await self._turn(sid, WRITE)
        check(bool(re.search(r"\b[0-9a-f]{64}\b", self._printed())), "no sha256 was printed")

    async def store(self, sid: UUID) -> None:
        self.content = await self.bucket.read(sid, FILE)
        digest = hashlib.sha256(self.content).hexdigest()
        check(len(self.content) == SIZE, f"the object has {len(self.content)} bytes, not {SIZE}")
        check(digest in self._printed(), "the object is not what the sandbox printed the sha256 of")
        live = await self.hf.live.read(sid, FILE)
        check(live == self.content, "the object is not the file that the sandbox sees")
        served = await self.hf.files.read(sid, FILE)
        check(served == self.content, "the api serves other bytes than the store has")

    async def kill(self, sid: UUID) -> None:
        box = self._sandbox_id()
        check(box in await self._alive(sid), f"sandbox {box} was gone before it was killed")
        if self.provider == "local":
            # Else the proof of death below could not fail.
            seen = bool(processes_in(self.namespaces[-1]))
            check(
                seen or self.elsewhere,
                "the sandbox's processes cannot be seen; run the matrix on the stack's host",
            )
        killed = await self.hf.sessions.kill(sid)
        check(killed.killed and killed.sandbox_id == box, f"the kill hit {killed.sandbox_id}")
        await self._none_left(sid)
        check(await self.bucket.read(sid, FILE) == self.content, "the kill changed the object")

    async def read_back(self, sid: UUID) -> None:
        first = self._sandbox_id()
        salt = secrets.token_hex(8)
        await self._turn(sid, READ_BACK.format(salt=salt))
        check(self._sandbox_id() != first, "the second turn ran in the killed sandbox")
        printed = self._printed()
        digest = hashlib.sha256(self.content).hexdigest()
        check(digest in printed, "the second sandbox did not print the sha256 of the file")
        salted = hashlib.sha256(self.content + salt.encode()).hexdigest()
        check(salted in printed, "the second sandbox did not read the file anew")

    async def transcript(self, sid: UUID) -> None:
        async with aclosing(self.hf.events(sid, follow=False)) as stream:
            events = [event async for event in stream]
        seqs = [event.seq for event in events]
        check(seqs == list(range(1, len(events) + 1)), "the transcript is not gapless from 1")
        turns = [turn async for turn in self.hf.turns.list(sid)]
        check(len(turns) == 2, f"the session has {len(turns)} turns, not 2")
        for turn in turns:
            types = [event.type for event in events if event.turn_id == turn.id]
            ends = [each for each in types if each in TURN_END_TYPES]
            check(ends == ["turn.completed"], f"turn {turn.id} ends with {ends}")
            check(types[-1] == "turn.completed", f"turn {turn.id} goes on after its end")
            check(types.count("turn.started") == 1, f"turn {turn.id} does not start once")
            check(types.count("receipt") == 1, f"turn {turn.id} has not one receipt")
            check(turn.receipt is not None, f"turn {turn.id} is listed without its receipt")

    async def clean(self, sid: UUID) -> None:
        gone = await self.hf.sessions.delete(sid)
        check(gone.turns == 2 and gone.objects >= 1, f"the delete removed only {gone}")
        try:
            await self.hf.sessions.get(sid)
        except errors.SessionNotFound:
            self.session_id = None
        check(self.session_id is None, "the session is still there after its delete")
        check(await self.bucket.count(sid) == 0, "objects are left in the store")
        await self._none_left(sid)
        if self.provider == "local":
            await until(lambda: not named(sid), lambda: f"left on the host: {named(sid)}")

    async def discard(self) -> None:
        """Removes what a failed trial left; its own failure is not the cell's."""
        if self.session_id is None:
            return
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                await self.hf.sessions.delete(self.session_id)
        except (errors.HoldfastError, TimeoutError) as error:
            log.warning("session %s could not be removed: %r", self.session_id, error)

    async def _turn(self, sid: UUID, prompt: str) -> None:
        turn = self.hf.turns.run(
            sid, prompt, harness=self.harness, provider=self.provider, model=self.model
        )
        try:
            async with asyncio.timeout(TURN_SECONDS), aclosing(turn) as all_:
                events = [event async for event in all_]
        except TimeoutError:
            raise CheckFailed(f"the turn did not end in {TURN_SECONDS} s") from None
        self.turns.append(events)
        end = events[-1]
        if isinstance(end, TurnFailed | TurnInterrupted):
            raise CheckFailed(f"{end.type}: {end.error.message}")
        check(isinstance(end, TurnCompleted), f"the turn ended with {end.type}")
        receipts = [event for event in events if isinstance(event, Receipt)]
        check(len(receipts) == 1, f"the turn has {len(receipts)} receipts")
        self.engine = receipts[0].engine
        check(
            self.wanted_engine in ("auto", self.engine),
            f"the receipt names {self.engine}, not {self.wanted_engine}",
        )
        started = next(event for event in events if isinstance(event, TurnStarted))
        ran = (started.harness, started.provider)
        check(ran == (self.harness, self.provider), f"the turn ran as {ran}")
        if self.provider == "local":
            found = re.search(r"pid:\[\d+\]", self._printed())
            check(found is not None, "the sandbox did not print its namespace")
            self.namespaces.append(found[0] if found else "")

    def _printed(self) -> str:
        """All that tools printed in the last turn."""
        last = self.turns[-1]
        return "\n".join(event.output for event in last if isinstance(event, ToolResult))

    def _sandbox_id(self) -> str:
        ready = [event for event in self.turns[-1] if isinstance(event, SandboxReady)]
        check(len(ready) == 1, f"the turn made {len(ready)} sandboxes, not one")
        return ready[0].sandbox_id

    async def _alive(self, sid: UUID) -> list[str]:
        listed = (await self.hf.sandboxes()).sandboxes
        return [
            each.sandbox_id for each in listed if each.session_id == sid and each.state != "gone"
        ]

    async def _none_left(self, sid: UUID) -> None:
        """Waits until the session has no sandbox, and the local host no process of one."""
        deadline = time.monotonic() + GONE_SECONDS
        while alive := await self._alive(sid):
            check(time.monotonic() < deadline, f"still listed after {GONE_SECONDS} s: {alive}")
            await asyncio.sleep(0.1)
        await until(lambda: not self._processes(), lambda: f"left running: {self._processes()}")

    def _processes(self) -> list[int]:
        """Processes of this session's boxes; namespaces are known on the local provider only."""
        return [pid for namespace in self.namespaces for pid in processes_in(namespace)]


class Moving(Trial):
    """A session whose second turn has another harness, or another provider."""

    def __init__(self, hf: Holdfast, bucket: Bucket, place: Place, then: Place, how: How) -> None:
        super().__init__(hf, bucket, place, how)
        self.then = then
        self.word = secrets.token_hex(6)

    async def write(self, sid: UUID) -> None:
        await self._turn(sid, f"{REMEMBER.format(word=self.word)}\n{WRITE}")

    async def kill(self, sid: UUID) -> None:
        """Nobody: the sandbox lives on, for the next turn to use or to end."""
        check(self._sandbox_id() in await self._alive(sid), "the sandbox is gone already")

    async def read_back(self, sid: UUID) -> None:
        first = self._sandbox_id()
        moves = self.then.provider != self.provider
        self.harness, self.provider = self.then.harness, self.then.provider
        self.model = self.then.model
        salt = secrets.token_hex(8)
        await self._turn(sid, f"{READ_BACK.format(salt=salt)}\n{RECALL}")
        salted = hashlib.sha256(self.content + salt.encode()).hexdigest()
        check(salted in self._printed(), "the file was not read anew")
        messages = [event for event in self.turns[-1] if isinstance(event, Message)]
        said = "".join(message.text for message in messages if message.role == "assistant")
        check(self.word in said, "who went on does not know what was said before")
        if moves:
            check(first not in await self._alive(sid), f"the first sandbox {first} lives on")
        one, two = [await self._files(sid, events) for events in self.turns]
        check(one == two, "the manifests of the two turns differ")

    async def _files(self, sid: UUID, events: list[Event]) -> str:
        """A hash of all that a turn's receipt covers; times are kept to the second."""
        turn_id = events[0].turn_id
        assert turn_id is not None
        stored = await self.hf.turns.manifest(sid, turn_id)
        entries = [
            (e.path, e.kind, e.size, e.sha256, e.mode, (e.mtime_ns or 0) // 10**9, e.target)
            for e in stored.manifest.entries
        ]
        return hashlib.sha256(repr(entries).encode()).hexdigest()


async def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while not await asyncio.to_thread(holds):
        check(time.monotonic() < deadline, otherwise())
        await asyncio.sleep(0.1)
