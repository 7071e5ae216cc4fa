"""Steps into calls of whatever tools the harness offers, and tool results into outcomes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from sidecar.gateway.scripted.conversation import Returned, Tool, without_blocks
from sidecar.gateway.scripted.reply import Call

Tools = Mapping[str, Tool]

_WRITE_NAMES = ("Write", "write", "write_file")
_READ_NAMES = ("Read", "read", "read_file")
_SHELL_NAMES = ("Bash", "bash", "exec_command", "shell_command", "shell")
_PATH_KEYS = ("file_path", "filePath", "path")
# codex gives a command ten seconds, then answers with a number to ask again with.
_POLL_MILLISECONDS = 30_000

# Each harness's way to give an exit code, precise enough that no command's own output passes for
# one: codex puts a header before the output, claude marks the result as failed, pi ends with it.
_CODEX = re.compile(
    r"\A(?P<header>(?:(?:Chunk ID|Wall time|Process|Original token count|Script)[^\n]*\n|\n){1,8}?)"
    r"Output:(?:\n(?P<output>.*))?\Z",
    re.DOTALL,
)
_CODEX_EXIT = re.compile(r"^Process exited with code (-?\d+)$", re.MULTILINE)
_CODEX_RUNNING = re.compile(r"^Process running with session ID (\d+)$", re.MULTILINE)
_CLAUDE_EXIT = re.compile(r"\AExit code (\d+)\n?")
_PI_EXIT = re.compile(r"\n*Command exited with code (\d+)\Z")
# The harnesses' words for nothing; the image is what pi says of an empty file.
_NO_OUTPUT = re.compile(r"\A\((?:(?:Bash completed with )?no output|see attached image)\)\Z")
# The chat protocol has no mark for a failed tool: these are opencode's and Node's own words.
_FILE_ERROR = re.compile(
    r"\A(?:File not found: "
    r"|E(?:ACCES|ISDIR|IO|LOOP|NAMETOOLONG|NOENT|NOSPC|NOTDIR|PERM|ROFS): [^\n]*, [a-z]+\b[^\n]*\Z)"
)
_NUMBERED = re.compile(r" *\d+(?:\t|→|: )")
# opencode's frame
_FRAMED = re.compile(
    r"\A<path>[^\n]*</path>\n<type>file</type>\n<content>\n?(?P<body>.*?)\n?</content>", re.DOTALL
)
_END_OF_FILE = re.compile(r"\n*\(End of file[^\n]*\)\Z")
# claude's words for a file that it has not seen, or not as it is now, and for one it has seen.
_NEEDS_READ = re.compile(r"has not been read yet|has been modified since read")
_UNCHANGED = re.compile(r"unchanged since|no need to re-?read", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool did. `running` is the session to ask again, when it has not ended yet."""

    ok: bool
    output: str
    exit_code: int | None = None
    running: int | None = None


def write_call(tools: Tools, path: str, text: str) -> Call | None:
    tool = _first(tools, _WRITE_NAMES)
    key = _path_key(tool)
    if tool and key:
        return Call(tool.name, {key: path, "content": text})
    return shell_call(tools, _redirect(text, ">", path))


def append_call(tools: Tools, path: str, text: str) -> Call | None:
    return shell_call(tools, _redirect(text, ">>", path))


def read_call(tools: Tools, path: str) -> Call | None:
    tool = _first(tools, _READ_NAMES)
    key = _path_key(tool)
    return Call(tool.name, {key: path}) if tool and key else cat_call(tools, path)


def cat_call(tools: Tools, path: str) -> Call | None:
    return shell_call(tools, shlex.join(["cat", "--", path]))


def shell_call(tools: Tools, command: str, *, ask: bool = False) -> Call | None:
    tool = _first(tools, _SHELL_NAMES)
    if tool is None:
        return _program_call(tools, "exec_command", _escalated({"cmd": command}, ask=ask))
    known = tool.properties
    if "cmd" in known:
        arguments: dict[str, Any] = {"cmd": command}
    elif _is_array(known.get("command")):
        arguments = {"command": ["bash", "-lc", command]}
    else:
        arguments = {"command": command}
    if "description" in known:
        arguments["description"] = "Run a command"
    if "sandbox_permissions" in known:
        arguments = _escalated(arguments, ask=ask)
    return Call(tool.name, arguments)


def poll_call(tools: Tools, session: int) -> Call | None:
    """Ask again after a command that has not ended yet."""
    arguments = {"session_id": session, "chars": "", "yield_time_ms": _POLL_MILLISECONDS}
    if "write_stdin" in tools:
        return Call("write_stdin", arguments)
    return _program_call(tools, "write_stdin", arguments)


def outcome(returned: Returned) -> Outcome:
    text = without_blocks(returned.text).strip("\n")
    codex = _CODEX.match(text)
    if codex:
        return _codex_outcome(codex)
    exit_code = (_CLAUDE_EXIT if returned.failed else _PI_EXIT).search(text)
    output = text[: exit_code.start()] + text[exit_code.end() :] if exit_code else text
    return Outcome(
        ok=not returned.failed and exit_code is None,
        output=_NO_OUTPUT.sub("", output),
        exit_code=int(exit_code.group(1)) if exit_code else None,
    )


def _codex_outcome(match: re.Match[str]) -> Outcome:
    header, output = match["header"], match["output"] or ""
    inner = _CODEX.match(output)  # the result of a program holds the command's own
    if inner:
        header, output = inner["header"], inner["output"] or ""
    running, exit_code = _CODEX_RUNNING.search(header), _CODEX_EXIT.search(header)
    code = int(exit_code.group(1)) if exit_code else None
    return Outcome(
        ok=code in (None, 0),
        output=output.strip("\n"),
        exit_code=code,
        running=int(running.group(1)) if running else None,
    )


def needs_read(result: Outcome) -> bool:
    """A harness may refuse to overwrite a file that the model has not read."""
    return not result.ok and bool(_NEEDS_READ.search(result.output))


def is_stub(result: Outcome) -> bool:
    """A harness may answer a second read with a note that the content is known already."""
    return result.ok and len(result.output) < 400 and bool(_UNCHANGED.search(result.output))


def is_file_error(result: Outcome) -> bool:
    """A file tool that failed without saying so in the protocol."""
    return bool(_FILE_ERROR.match(result.output))


def file_text(output: str, *, numbered: bool) -> str:
    """The content of a file without the frame and the line numbers that some read tools add."""
    framed = _FRAMED.search(output)
    if framed:
        numbered, output = True, _END_OF_FILE.sub("", framed["body"])
    if not numbered:
        return output
    return "\n".join(_NUMBERED.sub("", line, count=1) for line in output.split("\n"))


def numbers_lines(call: Call) -> bool:
    """Only claude's tool does so without a frame; elsewhere `1\\t` may well be the content."""
    return call.name == "Read"


def _first(tools: Tools, names: tuple[str, ...]) -> Tool | None:
    return next((tools[name] for name in names if name in tools), None)


def _path_key(tool: Tool | None) -> str | None:
    return next((key for key in _PATH_KEYS if tool and key in tool.properties), None)


def _is_array(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "array"


def _escalated(arguments: dict[str, Any], *, ask: bool) -> dict[str, Any]:
    if not ask:
        return arguments
    return arguments | {
        "sandbox_permissions": "require_escalated",
        "justification": "The prompt asks for permission to run this command.",
    }


def _redirect(text: str, operator: str, path: str) -> str:
    command = f"printf %s {shlex.quote(text)} {operator} {shlex.quote(path)}"
    parent = str(PurePosixPath(path).parent)
    return command if parent == "." else f"mkdir -p -- {shlex.quote(parent)} && {command}"


def _program_call(tools: Tools, nested: str, arguments: Mapping[str, Any]) -> Call | None:
    """codex hands its catalogue's models one tool, `exec`, that runs JavaScript over the others."""
    tool = tools.get("exec")
    if tool is None or not tool.free_text:
        return None
    program = (
        f"const r = await tools.{nested}({json.dumps(arguments)});\n"
        "text((r.exit_code === undefined\n"
        "  ? `Process running with session ID ${r.session_id}`\n"
        "  : `Process exited with code ${r.exit_code}`) + `\\nOutput:\\n${r.output}`);\n"
    )
    return Call(tool.name, program)
