"""What outlives a sidecar: boxes with their agents, the store, the gateway, and what the api has
seen. Plain data, so that it can be copied as it is at any moment.

Every call takes a step before it has an effect and one after it: a sidecar can die before what it
asked for is done, or before it hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from botocore.exceptions import ClientError

from contracts.bodies import GatewayRecord, GatewayRecords, Terms
from contracts.errors import SandboxGone
from sidecar.boxhost import answers
from sidecar.boxhost.mender import Mender
from sidecar.boxhost.walker import Walker
from sidecar.harnesses.state import read_tar, write_tar
from sidecar.providers.base import (
    Capabilities,
    Command,
    Endpoint,
    ExecResult,
    SandboxInfo,
    SandboxProcess,
    SandboxSpec,
    Status,
)
from sidecar.workspace.checkpoint import MARK
from sidecar.workspace.iam import SessionKey

SERVER = ("/opt/harness/bin/sandbox-agent",)
ADAPTER = ("/opt/node/bin/node", "/opt/harness/pi-acp/index.js", "/opt/node/bin/node")
SESSION_FILE = ".pi/agent/sessions/{}.jsonl"
POLL_SECONDS = 0.05
# What the agent does with a prompt, a step at a time: say, write, use the model, answer.
SCRIPT = ("say", "write", "model", "say", "answer")
NOW = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass
class Adapter:
    """A harness process behind the agent server: all that it has said, and what it will do yet."""

    pid: int
    log: list[dict[str, Any]] = field(default_factory=list)
    session: str = ""
    prompt_id: str | None = None
    to_do: list[str] = field(default_factory=list)


@dataclass
class Box:
    id: str
    labels: dict[str, str]
    lives: bool = True
    frozen: bool = False
    server: int | None = None
    marked: bytes | None = None
    home: dict[str, bytes] = field(default_factory=dict)
    adapters: dict[str, Adapter] = field(default_factory=dict)


@dataclass
class Outside:
    """`prompts` are those that an agent got. `shown`, `accepted` and `cancelled` are what the api
    has stored of the run, `started` is how often it has asked for it."""

    boxes: dict[str, Box] = field(default_factory=dict)
    objects: dict[tuple[str, str], bytes] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    records: list[GatewayRecord] = field(default_factory=list)
    last_record: int = 0
    prompts: list[str] = field(default_factory=list)
    shown: list[bytes] = field(default_factory=list)
    started: int = 0
    accepted: bool = False
    cancelled: bool = False
    wrongs: list[str] = field(default_factory=list)
    script: tuple[str, ...] = SCRIPT
    pids: int = 0
    changes: int = 0

    def living(self) -> list[Box]:
        return [box for box in self.boxes.values() if box.lives]

    def next_run(self) -> None:
        """The run has ended; what comes is of another one."""
        self.shown, self.started, self.accepted, self.cancelled = [], 0, False, False

    @property
    def busy(self) -> bool:
        """Whether an agent has something left to do."""
        return any(each.to_do for box in self.living() for each in box.adapters.values())

    def next_pid(self) -> int:
        self.pids += 1
        return self.pids


async def step() -> None:
    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def crossing(outside: Outside | None = None) -> AsyncIterator[None]:
    """A call to the outside; with `outside`, one that changes it."""
    await step()
    yield
    if outside is not None:
        outside.changes += 1
    await step()


class Agents:
    """The agents of all boxes, which go on whether a sidecar lives or not."""

    def __init__(self, outside: Outside, disks: Path) -> None:
        self._outside = outside
        self._disks = disks

    def go_on(self) -> None:
        """Do all that is left to do."""
        while any(self.do_next(box) for box in self._outside.living()):
            pass

    def do_next(self, box: Box) -> bool:
        for adapter in box.adapters.values():
            if adapter.to_do and not box.frozen:
                self._do(box, adapter, adapter.to_do.pop(0))
                self._outside.changes += 1
                return True
        return False

    def _do(self, box: Box, adapter: Adapter, what: str) -> None:
        outside = self._outside
        if what == "say":
            text = {"type": "text", "text": f"word {len(adapter.log)}. "}
            update = {"sessionUpdate": "agent_message_chunk", "content": text}
            self._say(adapter, update)
        elif what == "write":
            workspace = disk_of(self._disks, box)
            (workspace / "src").mkdir(exist_ok=True)
            (workspace / "src" / "answer.txt").write_text(f"answer to {outside.prompts[-1]}\n")
            done = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "write"}
            self._say(adapter, {**done, "status": "completed", "kind": "edit"})
        elif what == "model":
            outside.last_record += 1
            usage = {"input_tokens": 3, "output_tokens": 5, "model": "scripted-1"}
            record = GatewayRecord(id=outside.last_record, at=NOW, kind="usage", data=usage)
            outside.records.append(record)
        elif what == "die":
            adapter.log.append({"jsonrpc": "2.0", "method": "_adapter/agent_exited", "params": {}})
            adapter.pid, adapter.prompt_id = -adapter.pid, None
        else:
            path = SESSION_FILE.format(adapter.session)
            line = json.dumps({"id": str(len(adapter.log)), "prompt": outside.prompts[-1]})
            box.home[path] = box.home.get(path, b"") + line.encode() + b"\n"
            answer = {"id": adapter.prompt_id, "result": {"stopReason": "end_turn"}}
            adapter.log.append({"jsonrpc": "2.0", **answer})
            adapter.prompt_id = None

    def _say(self, adapter: Adapter, update: dict[str, Any]) -> None:
        params = {"sessionId": adapter.session, "update": update}
        adapter.log.append({"jsonrpc": "2.0", "method": "session/update", "params": params})


def disk_of(disks: Path, box: Box) -> Path:
    return disks / box.id / "workspace"


class Content:
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    def iter_any(self) -> AsyncIterator[bytes]:
        return self._chunks


class Answer:
    def __init__(self, status: int, chunks: AsyncIterator[bytes]) -> None:
        self.status = status
        self.content = Content(chunks)

    def close(self) -> None: ...


async def _body(text: str = "{}") -> AsyncIterator[bytes]:
    yield text.encode()


class AgentServer:
    """sandbox-agent of one box, as its HTTP client sees it."""

    def __init__(self, outside: Outside, agents: Agents, box: Box) -> None:
        self._outside = outside
        self._agents = agents
        self._box = box

    @contextlib.asynccontextmanager
    async def get(self, path: str, **how: Any) -> AsyncIterator[Answer]:
        await step()
        if path == "v1/health":
            yield Answer(200 if self._box.server else 503, _body())
            return
        adapter = self._box.adapters.get(path.rpartition("/")[2])
        if adapter is None:
            yield Answer(404, _body())
            return
        after = int(how["headers"]["last-event-id"])
        stream = self._messages(adapter, after)
        async with contextlib.aclosing(stream):
            yield Answer(200, stream)

    async def _messages(self, adapter: Adapter, after: int) -> AsyncGenerator[bytes, None]:
        while True:
            while after < len(adapter.log):
                after += 1
                message = json.dumps(adapter.log[after - 1])
                yield f"id: {after}\ndata: {message}\n\n".encode()
                await step()
            await asyncio.sleep(POLL_SECONDS)
            self._agents.do_next(self._box)

    @contextlib.asynccontextmanager
    async def post(self, path: str, json: dict[str, Any], **_: Any) -> AsyncIterator[Answer]:
        server_id = path.rpartition("/")[2]
        async with crossing(self._outside):
            adapter = self._box.adapters.get(server_id)
            if json.get("method") == "initialize":
                adapter = Adapter(self._outside.next_pid())
                self._box.adapters[server_id] = adapter
            if adapter is not None:
                self._hear(adapter, json)
        if adapter is None:
            yield Answer(404, _body())
            return
        while adapter.prompt_id is not None and adapter.prompt_id == json.get("id"):
            await asyncio.sleep(POLL_SECONDS)
        yield Answer(200, _body())

    def _hear(self, adapter: Adapter, message: dict[str, Any]) -> None:
        method, number = message.get("method"), message.get("id")
        answer: dict[str, Any] = {"result": {}}
        if method == "session/new":
            adapter.session = f"acp-{self._outside.next_pid()}"
            answer = {"result": {"sessionId": adapter.session}}
        elif method == "session/load":
            asked = message["params"]["sessionId"]
            if SESSION_FILE.format(asked) in self._box.home:
                adapter.session = asked
            else:
                answer = {"error": {"message": "no such session"}}
        elif method == "session/prompt":
            self._outside.prompts.append(message["params"]["prompt"][0]["text"])
            adapter.prompt_id, adapter.to_do = number, list(self._outside.script)
            return
        elif method == "session/cancel" and adapter.prompt_id is not None:
            number, adapter.prompt_id, adapter.to_do = adapter.prompt_id, None, []
            answer = {"result": {"stopReason": "cancelled"}}
        if number is not None:
            adapter.log.append({"jsonrpc": "2.0", "id": number, **answer})

    @contextlib.asynccontextmanager
    async def delete(self, path: str, **_: Any) -> AsyncIterator[Answer]:
        async with crossing(self._outside):
            self._box.adapters.pop(path.rpartition("/")[2], None)
        yield Answer(200, _body())


def _answer(found: dict[str, Any]) -> bytes:
    return json.dumps({"ok": found}).encode()


class BoxFiles:
    """The workspace on a box's disk, by the real scripts."""

    def __init__(self, outside: Outside, disk: Path) -> None:
        self._outside = outside
        self._walker = Walker(str(disk), young_ns=0)
        self._mender = Mender(str(disk))

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        async with crossing(self._outside if op in ("fill", "put", "remove") else None):
            found = getattr(self._walker, op)(**arguments)
        return answers.parse("walk", op, arguments, _answer(found))

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        async with crossing(self._outside if op == "restore" else None):
            found = getattr(self._mender, op)(**arguments)
        return answers.parse("mend", op, arguments, _answer(found))

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def held(self) -> set[int]:
        return set()

    async def close(self) -> None: ...


class BoxSandbox:
    gateway_url = "http://127.0.0.1:1"
    gateway_token = ""
    files_owner = None

    def __init__(self, outside: Outside, box: Box, disk: Path) -> None:
        self._outside = outside
        self.box = box
        self._disk = disk
        self.id = box.id
        self.labels = box.labels

    def _must_live(self) -> None:
        if not self.box.lives:
            raise SandboxGone(f"{self.id} is gone", op="call")

    async def exec(self, command: Command) -> ExecResult:
        async with crossing():
            self._must_live()
            if command.argv[0] == "head":
                marked = self.box.marked
                return ExecResult(1) if marked is None else ExecResult(0, marked)
            if command.argv[0] == "test":
                return ExecResult(0 if self.box.marked is None else 1)
            if command.argv[0] in ("mkdir", "find", "ls"):  # a new disk is empty
                return ExecResult(0)
            raise NotImplementedError(command.argv)

    async def spawn(self, command: Command) -> None:
        async with crossing(self._outside):
            self._must_live()
            self.box.server = self._outside.next_pid()

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        async with crossing(self._outside):
            self._must_live()
            assert path == MARK
            self.box.marked = data

    async def pack(self, kept: Sequence[str], left: Sequence[str]) -> bytes:
        async with crossing():
            self._must_live()
            home = self.box.home.items()
            return write_tar({path: data for path, data in home if path.startswith(tuple(kept))})

    async def unpack(self, tar: bytes) -> None:
        async with crossing(self._outside):
            self._must_live()
            self.box.home |= read_tar(tar)

    async def processes(self) -> list[SandboxProcess]:
        async with crossing():
            self._must_live()
            return list(self._running())

    def _running(self) -> Iterator[SandboxProcess]:
        if self.box.server is not None:
            yield SandboxProcess(str(self.box.server), self.box.server, SERVER)
        for adapter in self.box.adapters.values():
            if adapter.pid > 0:  # of a dead one its log is left
                yield SandboxProcess(str(adapter.pid), adapter.pid, ADAPTER)

    async def kill(self, processes: Sequence[SandboxProcess]) -> None:
        async with crossing(self._outside):
            dead = {process.pid for process in processes}
            if self.box.server in dead:
                self.box.server = None
            adapters = self.box.adapters.items()
            self.box.adapters = {name: each for name, each in adapters if each.pid not in dead}

    async def held(self) -> set[int]:
        return set()

    async def freeze(self) -> None:
        async with crossing(self._outside):
            self._must_live()
            self.box.frozen = True

    async def thaw(self) -> None:
        async with crossing(self._outside):
            self.box.frozen = False

    def endpoint(self, port: int) -> Endpoint:
        return Endpoint(f"http://{self.id}")

    async def keepalive(self) -> None: ...

    def files(self) -> BoxFiles:
        return BoxFiles(self._outside, self._disk)


class Cloud:
    """A Provider, whose boxes live on when the sidecar dies."""

    name = "local"
    capabilities = Capabilities(mount="none", freeze=True)

    def __init__(self, outside: Outside, disks: Path) -> None:
        self._outside = outside
        self._disks = disks

    async def trouble(self) -> str:
        return ""

    async def thaw_all(self) -> None:
        """What the sidecar's start does for the boxes of its own host."""
        async with crossing(self._outside):
            for box in self._outside.living():
                box.frozen = False

    async def create(self, spec: SandboxSpec) -> BoxSandbox:
        async with crossing(self._outside):
            rivals = [box.id for box in self._outside.living() if box.id != spec.key]
            if rivals:
                self._outside.wrongs.append(f"{spec.key} was made beside {rivals}")
            box = self._outside.boxes.get(spec.key)
            if box is None or not box.lives:
                box = Box(f"box-{self._outside.next_pid()}", dict(spec.labels))
                self._outside.boxes[spec.key] = box
                disk_of(self._disks, box).mkdir(parents=True)
        return self._sandbox(box)

    def _sandbox(self, box: Box) -> BoxSandbox:
        return BoxSandbox(self._outside, box, disk_of(self._disks, box))

    def _find(self, sandbox_id: str) -> Box | None:
        return next((box for box in self._outside.living() if box.id == sandbox_id), None)

    async def attach(self, sandbox_id: str) -> BoxSandbox:
        async with crossing():
            box = self._find(sandbox_id)
        if box is None:
            raise SandboxGone(f"{sandbox_id} is gone", op="attach")
        return self._sandbox(box)

    async def status(self, sandbox_id: str) -> Status:
        async with crossing():
            return Status.GONE if self._find(sandbox_id) is None else Status.RUNNING

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        await step()
        for box in self._outside.living():
            if labels.items() <= box.labels.items():
                yield SandboxInfo(box.id, box.labels, Status.RUNNING, NOW.isoformat())

    async def destroy(self, sandbox_id: str) -> bool:
        async with crossing(self._outside):
            box = self._find(sandbox_id)
            if box is not None:
                box.lives = False
        return box is not None


class Keys:
    """The fence: one key for a session at a time."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def close(self, session_id: str) -> None:
        async with crossing(self._outside):
            self._outside.keys.pop(session_id, None)

    async def admit(self, session_id: str, *, inside: bool = False) -> SessionKey:
        async with crossing(self._outside):
            key = f"key-{self._outside.next_pid()}"
            self._outside.keys[session_id] = key
        return SessionKey("user", key, "secret")


class NoSuchKey(ClientError):
    pass


def _refusal(code: str, status: int) -> dict[str, Any]:
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data

    async def iter_chunks(self, _: int) -> AsyncIterator[bytes]:
        yield self._data


class S3:
    """As much of an S3 client as Store uses. `key` None is the stack's own, which opens all."""

    class exceptions:
        NoSuchKey = NoSuchKey

    def __init__(self, outside: Outside, key: str | None = None) -> None:
        self._outside = outside
        self._key = key

    def _check(self) -> None:
        if self._key is not None and self._key not in self._outside.keys.values():
            raise ClientError(_refusal("InvalidAccessKeyId", 403), "any")  # type: ignore[arg-type]

    async def list_objects_v2(
        self, *, Bucket: str, Prefix: str = "", StartAfter: str = "", MaxKeys: int = 1000
    ) -> dict[str, Any]:
        async with crossing():
            self._check()
            found = [
                {"Key": key, "Size": len(data), "ETag": f'"{_md5(data)}"'}
                for (bucket, key), data in sorted(self._outside.objects.items())
                if bucket == Bucket and key.startswith(Prefix) and key > StartAfter
            ]
        return {"Contents": found, "IsTruncated": False}

    async def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        async with crossing():
            self._check()
            data = self._outside.objects.get((Bucket, Key))
        if data is None:
            raise ClientError(_refusal("404", 404), "HeadObject")  # type: ignore[arg-type]
        return {"ContentLength": len(data), "ETag": f'"{_md5(data)}"'}

    async def get_object(self, *, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:
        async with crossing():
            self._check()
            data = self._outside.objects.get((Bucket, Key))
        if data is None:
            raise NoSuchKey(_refusal("NoSuchKey", 404), "GetObject")  # type: ignore[arg-type]
        if Range:
            first, last = Range.removeprefix("bytes=").split("-")
            data = data[int(first) : int(last) + 1]
        return {"Body": Body(data), "ETag": f'"{_md5(data)}"'}

    async def put_object(
        self, *, Bucket: str, Key: str, Body: bytes, IfMatch: str = "", IfNoneMatch: str = ""
    ) -> None:
        async with crossing(self._outside):
            self._check()
            before = self._outside.objects.get((Bucket, Key))
            there = None if before is None else f'"{_md5(before)}"'
            if (IfMatch and IfMatch != there) or (IfNoneMatch and there is not None):
                raise ClientError(_refusal("PreconditionFailed", 412), "Put")  # type: ignore[arg-type]
            self._outside.objects[Bucket, Key] = bytes(Body)

    async def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> None:
        async with crossing(self._outside):
            self._check()
            for item in Delete["Objects"]:
                self._outside.objects.pop((Bucket, item["Key"]), None)


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class RecordingGateway:
    """The model gateway's notes of the one session."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def open(self, session_id: str, terms: Terms | None = None) -> Path:
        async with crossing():
            return Path("gateway.sock")

    async def close_session(self, session_id: str) -> None: ...

    async def records(
        self, session_id: UUID, after: int, *, wait: float = 0.0, idle: bool = False
    ) -> GatewayRecords:
        until = asyncio.get_running_loop().time() + wait
        while True:
            await step()
            found = [record for record in self._outside.records if record.id > after]
            if found or idle or asyncio.get_running_loop().time() >= until:
                return GatewayRecords(records=found, last=self._outside.last_record)
            await asyncio.sleep(POLL_SECONDS)

    async def taken(self, session_id: UUID, upto: int) -> None:
        async with crossing(self._outside):
            records = self._outside.records
            self._outside.records = [record for record in records if record.id > upto]
