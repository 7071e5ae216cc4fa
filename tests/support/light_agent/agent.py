"""A coding agent for tests that need some agent and not a particular one: ACP on stdio.

It stands in pi's place (tests/support/light_agent/tree.py): it is configured by the files and the
environment that `sidecar/harnesses/pi.py` gives to pi, and keeps its conversations where pi does,
in pi's records, so that they are carried and mended in the same way. It starts in a twentieth of
pi's time. Only the standard library, and little of it: it runs in a sandbox, by `python3 -I -S`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

AGENT = Path(os.environ["HOME"]) / ".pi" / "agent"
RETRY_SECONDS = (0.25, 0.5, 1.0, 2.0)
SHOWN_CHARS = 50_000  # of a tool's output, its end
TOOLS = {
    "bash": {"command": {"type": "string"}},
    "read": {"path": {"type": "string"}},
    "write": {"path": {"type": "string"}, "content": {"type": "string"}},
}
KINDS = {"read": "read", "write": "edit"}

Json = dict[str, Any]


class Cancelled(Exception):
    """The turn was cancelled."""


class ModelFailed(Exception):
    """The model did not answer, or not to the end."""


class Conversation:
    """A session's messages, in memory and in the file that a later process loads."""

    def __init__(self, name: str, workspace: str) -> None:
        self.name = name
        self.workspace = workspace
        self.messages: list[Json] = []
        self._path = AGENT / "sessions" / f"{name}.jsonl"

    def create(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"type": "session", "id": self.name}) + "\n")

    def load(self) -> None:
        """Raises: OSError, when there is no such session."""
        records = [json.loads(line) for line in self._path.read_text().splitlines()]
        self.messages = [record["message"] for record in records if "message" in record]

    def add(self, message: Json) -> None:
        self.messages.append(message)
        record = {"type": "message", "id": os.urandom(4).hex(), "message": message}
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def for_model(self) -> list[Json]:
        return [_for_model(message) for message in self.messages]


def _for_model(message: Json) -> Json:
    """A record of pi's as a message of the chat protocol."""
    text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    if message["role"] == "toolResult":
        return {"role": "tool", "tool_call_id": message["toolCallId"], "content": text}
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["arguments"])},
        }
        for block in message["content"]
        if block["type"] == "toolCall"
    ]
    more = {"tool_calls": calls} if calls else {}
    return {"role": message["role"], "content": text, **more}


class Model:
    """The gateway, asked by chat completions; an answer can be broken off by another thread."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        provider = json.loads((AGENT / "models.json").read_text())["providers"]["gateway"]
        address, _, self._path = provider["baseUrl"].removeprefix("http://").partition("/")
        host, _, port = address.partition(":")
        self._address = (host, int(port))
        self._model = provider["models"][0]["id"]
        self._connection: socket.socket | None = None

    def answer(self, messages: list[Json]) -> Iterator[Json]:
        """The deltas of one answer. Raises: ModelFailed."""
        functions = [
            {"name": name, "parameters": {"type": "object", "properties": properties}}
            for name, properties in TOOLS.items()
        ]
        body = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": messages,
            "tools": [{"type": "function", "function": each} for each in functions],
        }
        for line in self._lines(json.dumps(body).encode()):
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data: "):
                yield from (choice["delta"] for choice in json.loads(line[6:])["choices"])
        raise ModelFailed("the answer has no end")

    def _lines(self, body: bytes) -> Iterator[bytes]:
        for pause in (*RETRY_SECONDS, None):
            try:
                status, file = self._post(body)
            except OSError as error:
                status, problem = 0, str(error)
            else:
                if status == 200:
                    break
                problem = f"{status}: {file.read()[:1000]!r}"
            if pause is None or 400 <= status < 500 or self._cancelled.wait(pause):
                raise ModelFailed(problem)
        rest = b""
        try:
            for chunk in _chunks(file):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        except (OSError, ValueError) as error:
            raise ModelFailed(str(error)) from error

    def _post(self, body: bytes) -> tuple[int, Any]:
        self._connection = socket.create_connection(self._address, timeout=None)
        if self._cancelled.is_set():  # it may have been set before there was a connection
            raise ModelFailed("cancelled")
        head = (
            f"POST /{self._path}/chat/completions HTTP/1.1\r\nHost: model\r\n"
            f"Authorization: Bearer {os.environ['GATEWAY_TOKEN']}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._connection.sendall(head.encode() + body)
        file = self._connection.makefile("rb")
        status = int(file.readline().partition(b" ")[2][:3] or 0)
        while file.readline().strip():
            pass
        return status, file

    def break_off(self) -> None:
        if self._connection is not None:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return


def _chunks(file: Any) -> Iterator[bytes]:
    """The pieces of a chunked body. Raises: ValueError, when it is cut off."""
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()


class Tools:
    """What the model may call; a command can be killed by another thread."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._running: subprocess.Popen[bytes] | None = None

    def run(self, name: str, given: Json, workspace: str, show: Any) -> tuple[bool, str]:
        """Whether it worked, and what is to be told of it."""
        try:
            if name == "bash":
                return self._bash(given["command"], workspace, show)
            path = Path(workspace) / given["path"]
            if name == "read":
                return True, path.read_bytes().decode("utf-8", "replace")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(given["content"])
            return True, f"Successfully wrote {len(given['content'])} bytes to {given['path']}"
        except FileNotFoundError:
            return False, f"ENOENT: no such file or directory, access '{given.get('path')}'"
        except OSError as error:
            return False, f"EIO: {error}, access '{given.get('path')}'"

    def _bash(self, command: str, workspace: str, show: Any) -> tuple[bool, str]:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running = process
        if self._cancelled.is_set():  # it may have been set before there was a process
            self.kill()
        output = ""
        for piece in _output(process):
            output = (output + piece.decode("utf-8", "replace"))[-SHOWN_CHARS:]
            show(output)
        code = process.wait()
        self._running = None
        if code != 0:
            return False, f"{output}\n\nCommand exited with code {code}"
        return True, output or "(no output)"

    def kill(self) -> None:
        if self._running is not None:
            try:
                os.killpg(self._running.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


def _output(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Until the command has ended: what it leaves in the background may hold its output open."""
    assert process.stdout is not None
    with process.stdout as pipe:
        exited = os.pidfd_open(process.pid)
        try:
            while pipe.fileno() in select.select([pipe.fileno(), exited], [], [])[0]:
                if not (piece := os.read(pipe.fileno(), 65_536)):
                    return
                yield piece
        finally:
            os.close(exited)


class Agent:
    """One adapter process; a prompt runs in a thread, so that a cancel is heard."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._cancelled = threading.Event()
        self._conversations: dict[str, Conversation] = {}
        self._model = Model(self._cancelled)
        self._tools = Tools(self._cancelled)

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            if method == "session/cancel":
                self._cancelled.set()
                self._model.break_off()
                self._tools.kill()
            elif method == "session/prompt":
                self._cancelled.clear()
                threading.Thread(target=self._prompt, args=(message["id"], params)).start()
            elif "id" in message and method is not None:
                self._send({"id": message["id"], **self._reply(method, params)})
        self._tools.kill()
        os._exit(0)

    def _send(self, message: Json) -> None:
        with self._writing:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def _reply(self, method: str, params: Json) -> Json:
        if method == "initialize":
            can = {"loadSession": True, "promptCapabilities": {}}
            return {"result": {"protocolVersion": 1, "agentCapabilities": can, "authMethods": []}}
        if method == "session/new":
            made = Conversation(os.urandom(16).hex(), params["cwd"])
            made.create()
            self._conversations[made.name] = made
            return {"result": {"sessionId": made.name}}
        if method == "session/load":
            loaded = Conversation(Path(params["sessionId"]).name, params["cwd"])
            try:
                loaded.load()
            except OSError:
                return {"error": {"code": -32602, "message": f"there is no session {loaded.name}"}}
            self._conversations[loaded.name] = loaded
            return {"result": {}}
        if method in ("session/set_mode", "session/close"):
            return {"result": {}}
        return {"error": {"code": -32601, "message": f"there is no method {method}"}}

    def _prompt(self, request: object, params: Json) -> None:
        conversation = self._conversations[params["sessionId"]]
        try:
            conversation.add({"role": "user", "content": params["prompt"]})
            while self._take_step(conversation):
                pass
        except Cancelled:
            self._send({"id": request, "result": {"stopReason": "cancelled"}})
        except OSError as error:  # its disk may be full
            self._send({"id": request, "error": {"code": -32603, "message": str(error)}})
        except ModelFailed as failed:
            # As pi does: what the gateway saw makes the turn a failed one.
            sys.stderr.write(f"the model failed: {failed}\n")
            self._send({"id": request, "result": {"stopReason": "end_turn"}})
        else:
            self._send({"id": request, "result": {"stopReason": "end_turn"}})

    def _take_step(self, conversation: Conversation) -> bool:
        """One answer of the model and the tools that it calls; whether it waits for their results.

        Raises: Cancelled, ModelFailed.
        """
        content = self._hear(conversation)
        conversation.add({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "toolCall"]
        for call in calls:
            self._call(conversation, call)
        return bool(calls)

    def _hear(self, conversation: Conversation) -> list[Json]:
        said, calls = "", []
        try:
            for delta in self._model.answer(conversation.for_model()):
                if text := delta.get("content"):
                    said += text
                    self._show_text(conversation, "agent_message_chunk", text)
                if text := delta.get("reasoning_content"):
                    self._show_text(conversation, "agent_thought_chunk", text)
                calls += delta.get("tool_calls", [])
        except ModelFailed:
            if self._cancelled.is_set():
                raise Cancelled from None
            raise
        blocks: list[Json] = [{"type": "text", "text": said}] if said else []
        for call in calls:
            name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
            blocks.append({"type": "toolCall", "id": call["id"], "name": name, "arguments": given})
        return blocks

    def _call(self, conversation: Conversation, call: Json) -> None:
        name, given, same = call["name"], call["arguments"], {"toolCallId": call["id"]}
        named = [Path(conversation.workspace) / given["path"]] if "path" in given else []
        start: Json = {"title": name, "kind": KINDS.get(name, "other"), "status": "in_progress"}
        start |= {"rawInput": given, "locations": [{"path": str(path)} for path in named]}
        self._show(conversation, "tool_call", {**same, **start})

        def show(output: str) -> None:
            progress = {**same, "status": "in_progress", "content": _shown(output)}
            self._show(conversation, "tool_call_update", progress)

        worked, output = self._tools.run(name, given, conversation.workspace, show)
        if self._cancelled.is_set():
            worked, output = False, f"{output}\n\nCommand aborted"
        result = {**same, "status": "completed" if worked else "failed", "content": _shown(output)}
        self._show(conversation, "tool_call_update", result)
        blocks = [{"type": "text", "text": output}]
        told = {"toolCallId": call["id"], "toolName": name, "isError": not worked}
        conversation.add({"role": "toolResult", "content": blocks, **told})
        if self._cancelled.is_set():
            raise Cancelled

    def _show_text(self, conversation: Conversation, kind: str, text: str) -> None:
        self._show(conversation, kind, {"content": {"type": "text", "text": text}})

    def _show(self, conversation: Conversation, kind: str, update: Json) -> None:
        params = {"sessionId": conversation.name, "update": {"sessionUpdate": kind, **update}}
        self._send({"method": "session/update", "params": params})


def _shown(text: str) -> list[Json]:
    return [{"type": "content", "content": {"type": "text", "text": text}}]


if __name__ == "__main__":
    Agent().serve()
