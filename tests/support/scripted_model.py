"""The scripted model, asked as each harness asks it."""

from __future__ import annotations

from sidecar.gateway.scripted.conversation import (
    Called,
    Conversation,
    Item,
    Returned,
    Said,
    Tool,
)
from sidecar.gateway.scripted.model import answer
from sidecar.gateway.scripted.reply import (
    Call,
    Failure,
    Part,
    Reply,
    Text,
)


def offered(*tools: Tool) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


def function(name: str, *parameters: str) -> Tool:
    return Tool(name, {parameter: {"type": "string"} for parameter in parameters})


CLAUDE = offered(
    function("Bash", "command", "description"),
    function("Read", "file_path"),
    function("Write", "file_path", "content"),
)


CODEX = offered(
    function("exec_command", "cmd", "justification", "sandbox_permissions"),
    function("write_stdin", "chars", "session_id", "yield_time_ms"),
)


CODEX_CATALOGUE = offered(Tool("exec", free_text=True), function("wait", "cell_id"))


CODEX_OLD = offered(Tool("shell", {"command": {"type": "array"}}))


OPENCODE = offered(
    function("bash", "command"),
    function("read", "filePath"),
    function("write", "filePath", "content"),
)


PI = offered(
    function("bash", "command"), function("read", "path"), function("write", "path", "content")
)


def ask(prompt: str, *results: Returned, tools: dict[str, Tool] = CLAUDE) -> Reply | Failure:
    """The answer to a prompt whose first calls have given `results`."""
    items: list[Item] = [Said("user", prompt)]
    for result in results:
        items += [Called(result.call_id, "tool"), result]
    return answer(Conversation(tuple(items), tools))


def parts(reply: Reply | Failure) -> tuple[Part, ...]:
    assert isinstance(reply, Reply)
    return reply.parts


def text(reply: Reply | Failure) -> str:
    [part] = parts(reply)
    assert isinstance(part, Text)
    return part.text


def call(reply: Reply | Failure) -> Call:
    [part] = parts(reply)
    assert isinstance(part, Call)
    return part


def ok(output: str = "") -> Returned:
    return Returned("1", output)
