"""The toolbox: commands, sessions and files of a sandbox, below /toolbox/{sandbox}.

Whoever asks for a sandbox that is not there gets 401, like somebody with a wrong key: the proxy
before the real one cannot tell the two apart.
"""

from __future__ import annotations

import asyncio
import json
import posixpath
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from emulators.boxes import Box, BoxNotRunning, BoxProcess
from emulators.daytona.preview import not_started
from emulators.daytona.sandboxes import Sandbox, Sandboxes
from emulators.daytona.sessions import SHELL, Session, SessionCommand
from emulators.daytona.wire import DAEMON, PROXY, Refused, bearer

PREFIX = "/toolbox"
HOME = "/home/agent"
BOUNDARY = "DAYTONA-FILE-BOUNDARY"
Handler = Callable[[Request], Awaitable[Response]]


class Toolbox:
    def __init__(self, sandboxes: Sandboxes, key: str) -> None:
        self._sandboxes = sandboxes
        self._key = key

    def routes(self) -> list[BaseRoute]:
        one = PREFIX + "/{sandbox}"
        session = one + "/process/session/{session}"
        command = session + "/command/{command}"
        return [
            Route(f"{one}/user-home-dir", self._home, methods=["GET"]),
            Route(f"{one}/work-dir", self._home, methods=["GET"]),
            Route(f"{one}/process/execute", self._execute, methods=["POST"]),
            Route(f"{one}/process/session", self._open_session, methods=["POST"]),
            Route(f"{one}/process/session", self._list_sessions, methods=["GET"]),
            Route(session, self._show_session, methods=["GET"]),
            Route(session, self._close_session, methods=["DELETE"]),
            Route(f"{session}/exec", self._session_execute, methods=["POST"]),
            Route(command, self._show_command, methods=["GET"]),
            Route(f"{command}/logs", self._logs, methods=["GET"]),
            WebSocketRoute(f"{command}/logs", self._follow_logs),
            Route(f"{command}/input", self._input, methods=["POST"]),
            Route(f"{one}/files/bulk-upload", self._upload, methods=["POST"]),
            Route(f"{one}/files/bulk-download", self._download, methods=["POST"]),
            Route(f"{one}/files/folder", self._make_folder, methods=["POST"]),
            Route(f"{one}/files/permissions", self._set_permissions, methods=["POST"]),
            Route(f"{one}/files", self._remove, methods=["DELETE"]),
        ]

    def _let_in(self, connection: HTTPConnection) -> tuple[Sandbox, Box]:
        """Raises: Refused 401, 400."""
        sandbox = self._sandboxes.named(connection.path_params["sandbox"])
        if sandbox is None or bearer(connection.headers.get("authorization")) != self._key:
            raise Refused(401, "authentication failed: Bearer token is invalid", source=PROXY)
        if sandbox.state != "started" or sandbox.box is None:
            raise not_started()
        self._sandboxes.active(sandbox)
        return sandbox, sandbox.box

    def _session(self, connection: HTTPConnection) -> Session:
        """Raises: Refused."""
        sandbox, _ = self._let_in(connection)
        found = sandbox.sessions.get(connection.path_params["session"])
        if found is None:
            raise Refused(404, "session not found", source=DAEMON)
        return found

    def _command(self, connection: HTTPConnection) -> SessionCommand:
        """Raises: Refused."""
        return self._session(connection).find(connection.path_params["command"])

    async def _home(self, request: Request) -> Response:
        self._let_in(request)
        return JSONResponse({"dir": HOME})

    async def _execute(self, request: Request) -> Response:
        """Both outputs as one, as they come."""
        sandbox, box = self._let_in(request)
        body = await request.json()
        shell = " ".join(SHELL)
        try:
            process = await box.exec(
                ["sh", "-c", f"exec {shell} 2>&1"],
                cwd=body.get("cwd") or HOME,
                env=body.get("envs") or {},
            )
        except OSError as error:
            return JSONResponse({"exitCode": -1, "result": str(error)})
        try:
            async with asyncio.timeout(body.get("timeout") or None):
                exit_code, output = await _run(process, body["command"].encode())
        except TimeoutError as error:
            await process.kill()
            raise Refused(
                408,
                "command execution timeout",
                code="PROCESS_EXECUTION_TIMEOUT",
                source=DAEMON,
            ) from error
        self._sandboxes.active(sandbox)
        return JSONResponse({"exitCode": exit_code, "result": output.decode(errors="replace")})

    async def _open_session(self, request: Request) -> Response:
        sandbox, box = self._let_in(request)
        session_id = (await request.json())["sessionId"]
        if session_id in sandbox.sessions:
            raise Refused(409, "session already exists", source=DAEMON)
        sandbox.sessions[session_id] = await Session.open(session_id, box, HOME)
        return Response(status_code=201)

    async def _list_sessions(self, request: Request) -> Response:
        sandbox, _ = self._let_in(request)
        return JSONResponse([_session_shown(session) for session in sandbox.sessions.values()])

    async def _show_session(self, request: Request) -> Response:
        return JSONResponse(_session_shown(self._session(request)))

    async def _close_session(self, request: Request) -> Response:
        session = self._session(request)
        sandbox, _ = self._let_in(request)
        del sandbox.sessions[session.id]
        await session.close()
        return Response(status_code=204)

    async def _session_execute(self, request: Request) -> Response:
        session = self._session(request)
        body = await request.json()
        in_background = bool(body.get("runAsync") or body.get("async"))
        command = await session.execute(
            body["command"],
            in_background=in_background,
            silent=bool(body.get("suppressInputEcho")),
        )
        if in_background:
            return JSONResponse({"cmdId": command.id}, 202)
        async for _ in command.followed():
            pass
        return JSONResponse(
            {"cmdId": command.id, "exitCode": command.exit_code, **_log_shown(command)}
        )

    async def _show_command(self, request: Request) -> Response:
        return JSONResponse(_command_shown(self._command(request)))

    async def _logs(self, request: Request) -> Response:
        return JSONResponse(_log_shown(self._command(request)))

    async def _follow_logs(self, socket: WebSocket) -> None:
        try:
            command = self._command(socket)
        except Refused as refused:
            await socket.send_denial_response(JSONResponse(refused.body(), refused.status))
            return
        await socket.accept()
        async for piece in command.followed():
            await socket.send_bytes(piece)
        await socket.close()

    async def _input(self, request: Request) -> Response:
        session = self._session(request)
        await session.send(self._command(request), (await request.json())["data"])
        return Response(status_code=204)

    async def _upload(self, request: Request) -> Response:
        """A file that is there keeps its mode."""
        _, box = self._let_in(request)
        paths: dict[str, str] = {}
        errors, files = [], []
        async with request.form() as form:
            for name, value in form.multi_items():
                number = name.partition(".")[0]
                if not isinstance(value, UploadFile):
                    paths[number] = value
                    continue
                path, data = paths[number], await value.read()
                error = await _written(box, path, data)
                if error:
                    errors.append(f"{path}: {error}")
                else:
                    files.append({"path": path, "bytes": len(data)})
        body = {"files": files, **({"errors": errors} if errors else {})}
        return JSONResponse(body, 400 if errors else 200)

    async def _download(self, request: Request) -> Response:
        """A part for each path: `file`, or `error`."""
        _, box = self._let_in(request)
        parts = []
        for path in (await request.json())["paths"]:
            kind, content_type = "file", "application/octet-stream"
            try:
                data = await box.read(posixpath.join(HOME, path))
            except OSError as error:
                kind, content_type = "error", "application/json; charset=utf-8"
                data = json.dumps(_unreadable(path, error).body()).encode()
            disposition = f"form-data; name=\"{kind}\"; filename*=utf-8''{quote(path, safe='')}"
            head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n"
            parts.append(f"{head}Content-Type: {content_type}\r\n\r\n".encode() + data + b"\r\n")
        end = f"--{BOUNDARY}--\r\n".encode()
        return Response(
            b"".join(parts) + end, media_type=f"multipart/form-data; boundary={BOUNDARY}"
        )

    async def _make_folder(self, request: Request) -> Response:
        query = request.query_params
        made = ["mkdir", "-p", "-m", query["mode"], "--", query["path"]]
        return await self._on_files(request, made, status=201)

    async def _set_permissions(self, request: Request) -> Response:
        query = request.query_params
        script = '[ -z "$1" ] || chmod "$1" -- "$3"; [ "$2" = : ] || chown "$2" -- "$3"'
        owner = f"{query.get('owner', '')}:{query.get('group', '')}"
        changed = ["sh", "-ec", script, "sh", query.get("mode", ""), owner, query["path"]]
        return await self._on_files(request, changed, status=200)

    async def _remove(self, request: Request) -> Response:
        query = request.query_params
        recursive = query.get("recursive", "").lower() == "true"
        removed = ["rm", *(["-r"] if recursive else []), "--", query["path"]]
        return await self._on_files(request, removed, status=204)

    async def _on_files(self, request: Request, argv: list[str], *, status: int) -> Response:
        _, box = self._let_in(request)
        exit_code, output = await _run(await box.exec(argv, cwd=HOME))
        if exit_code != 0:
            raise Refused(400, output.decode(errors="replace").strip(), source=DAEMON)
        return Response(status_code=status)


async def _run(process: BoxProcess, stdin: bytes = b"") -> tuple[int, bytes]:
    """The exit code, and both outputs. A box that ends under it is not started any more."""
    process.stdin.write(stdin)
    process.stdin.close()
    try:
        async with asyncio.TaskGroup() as reading:
            outputs = [
                reading.create_task(stream.read()) for stream in (process.stdout, process.stderr)
            ]
            exit_code = await process.wait()
    except* (BoxNotRunning, ConnectionError) as errors:
        raise not_started() from errors
    return exit_code, b"".join(output.result() for output in outputs)


async def _written(box: Box, path: str, data: bytes) -> str:
    """What went wrong, if something did."""
    script = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
    exit_code, output = await _run(await box.exec(["sh", "-c", script, "sh", path], cwd=HOME), data)
    return output.decode(errors="replace").strip() if exit_code else ""


def _unreadable(path: str, error: OSError) -> Refused:
    if isinstance(error, FileNotFoundError):
        return Refused(404, f"file not found: {path}", code="FILE_NOT_FOUND", source=DAEMON)
    if isinstance(error, PermissionError):
        return Refused(403, f"permission denied: {path}", code="FILE_ACCESS_DENIED", source=DAEMON)
    if isinstance(error, IsADirectoryError):
        return Refused(400, f"a directory: {path}", code="INVALID_FILE_PATH", source=DAEMON)
    return Refused(500, f"failed to open file: {error}", code="FILE_READ_FAILED", source=DAEMON)


def _session_shown(session: Session) -> dict[str, Any]:
    commands = [_command_shown(command) for command in session.commands.values()]
    return {"sessionId": session.id, "commands": commands}


def _command_shown(command: SessionCommand) -> dict[str, Any]:
    exit_code = command.exit_code if command.ended else None
    return {"id": command.id, "command": command.command, "exitCode": exit_code}


def _log_shown(command: SessionCommand) -> dict[str, Any]:
    stdout, stderr = command.split()
    output = bytes(command.log).decode(errors="replace")
    return {"output": output, "stdout": stdout, "stderr": stderr}
