#!/usr/bin/python3
"""A harness stand-in that speaks ACP on stdio: it does at once what its prompt says.

Installed by `bench.load` as `pi-acp` in a harness tree of the bench's own, so that sandbox-agent in
a box starts it as it starts pi. The last line of a prompt is an order:
`{"turn": "t1", "pieces": 40, "pause": 0.25, "tool_every": 10}`: so many numbered pieces of text, a
pause after each, and every so often a tool call that writes a file into the workspace. Only the
standard library, and nothing of this repository: it runs in a box.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

FILLER = "the quick brown fox jumps over the lazy dog " * 2
STATE = Path.home() / ".pi" / "agent" / "sessions"


class Agent:
    """One adapter process; a prompt runs in a thread, so that a cancel is heard."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._cancelled = threading.Event()
        self._workspaces: dict[str, Path] = {}

    def send(self, message: dict[str, Any]) -> None:
        with self._writing:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            if method == "session/cancel":
                self._cancelled.set()
            elif method == "session/prompt":
                self._cancelled.clear()
                arguments = (message["id"], params)
                threading.Thread(target=self._prompt, args=arguments, daemon=True).start()
            elif "id" in message and method is not None:
                self.send({"id": message["id"], **self._answer(method, params)})

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            can = {"loadSession": True, "promptCapabilities": {}}
            return {"result": {"protocolVersion": 1, "agentCapabilities": can, "authMethods": []}}
        if method == "session/new":
            session = str(uuid.uuid4())
            self._workspaces[session] = Path(params["cwd"])
            STATE.mkdir(parents=True, exist_ok=True)
            _state(session).write_text(json.dumps({"type": "session", "id": session}) + "\n")
            return {"result": {"sessionId": session}}
        if method == "session/load":
            session = params["sessionId"]
            if not _state(session).is_file():
                return {"error": {"code": -32602, "message": f"there is no session {session}"}}
            self._workspaces[session] = Path(params["cwd"])
            return {"result": {}}
        if method in ("session/set_mode", "session/close"):
            return {"result": {}}
        return {"error": {"code": -32601, "message": f"no method {method}"}}

    def _prompt(self, request: object, params: dict[str, Any]) -> None:
        session = params["sessionId"]
        order = json.loads(params["prompt"][-1]["text"].splitlines()[-1])
        turn, pieces, every = order["turn"], order["pieces"], order["tool_every"]
        for number in range(1, pieces + 1):
            if self._cancelled.is_set():
                break
            text = f"{turn}:{number}:{time.time():.6f} {FILLER}\n"
            content = {"type": "text", "text": text}
            self._update(session, {"sessionUpdate": "agent_message_chunk", "content": content})
            if number % every == 0:
                self._tool(session, turn, number)
            time.sleep(order["pause"])
        with _state(session).open("a") as file:
            file.write(json.dumps({"type": "turn", "id": turn}) + "\n")
        reason = "cancelled" if self._cancelled.is_set() else "end_turn"
        self.send({"id": request, "result": {"stopReason": reason}})

    def _tool(self, session: str, turn: str, number: int) -> None:
        call, name = f"{turn}-{number}", f"notes-{number}.txt"
        start = {"toolCallId": call, "title": f"write {name}", "kind": "edit"}
        self._update(session, {"sessionUpdate": "tool_call", "status": "in_progress", **start})
        (self._workspaces[session] / name).write_text(f"{call}\n")
        end = {"toolCallId": call, "status": "completed", "rawOutput": call}
        self._update(session, {"sessionUpdate": "tool_call_update", **end})

    def _update(self, session: str, update: dict[str, Any]) -> None:
        self.send({"method": "session/update", "params": {"sessionId": session, "update": update}})


def _state(session: str) -> Path:
    return STATE / f"{uuid.UUID(session)}.jsonl"


if __name__ == "__main__":
    Agent().serve()
