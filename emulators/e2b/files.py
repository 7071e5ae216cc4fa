"""envd's files: the service `filesystem.Filesystem`, and `/files` for their contents.

Every call acts as the user that it names, where the real envd acts as root and gives away what it
made. No watching, no extended attributes.
"""

from __future__ import annotations

import gzip
import posixpath
from collections.abc import Sequence
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.filesystem import filesystem_connect
from e2b.envd.filesystem import filesystem_pb as pb
from protobuf.wkt import Timestamp
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from emulators.boxes import Box, BoxNotRunning, User
from emulators.e2b.users import BadPath, UnknownUser, named, resolved, user_of

TYPES = {
    "f": pb.FileType.FILE,
    "d": pb.FileType.DIRECTORY,
    "l": pb.FileType.SYMLINK,
}
# one line per entry: type, size, mode, user, group, time, link's target; then its path, then NUL
SHOWN = r"%y|%s|%m|%u|%g|%T@|%l\n%p\0"
Context = RequestContext[Any, Any]  # one type for every call


class Files(filesystem_connect.Filesystem):
    """The files of one box."""

    def __init__(self, box: Box) -> None:
        self._box = box

    async def stat(self, request: pb.StatRequest, ctx: Context, /) -> pb.StatResponse:
        user, path = _asked(request.path, ctx)
        return pb.StatResponse(entry=await self._entry(path, user))

    async def list_dir(self, request: pb.ListDirRequest, ctx: Context, /) -> pb.ListDirResponse:
        user, path = _asked(request.path, ctx)
        if (await self._entry(f"{path}/.", user)).type != pb.FileType.DIRECTORY:
            raise ConnectError(Code.INVALID_ARGUMENT, f"path is not a directory: {path}")
        depth = str(request.depth or 1)
        argv = ["find", f"{path}/", "-mindepth", "1", "-maxdepth", depth, "-printf", SHOWN]
        entries = _entries(await self._run(argv, user))
        return pb.ListDirResponse(entries=sorted(entries, key=lambda entry: entry.path))

    async def make_dir(self, request: pb.MakeDirRequest, ctx: Context, /) -> pb.MakeDirResponse:
        user, path = _asked(request.path, ctx)
        try:
            found = await self._entry(path, user)
        except ConnectError as error:
            if error.code != Code.NOT_FOUND:
                raise
        else:
            if found.type != pb.FileType.DIRECTORY:
                raise ConnectError(Code.INVALID_ARGUMENT, f"{path} is not a directory")
            raise ConnectError(Code.ALREADY_EXISTS, f"directory already exists: {path}")
        await self._run(["mkdir", "-p", "--", path], user)
        return pb.MakeDirResponse(entry=await self._entry(path, user))

    async def remove(self, request: pb.RemoveRequest, ctx: Context, /) -> pb.RemoveResponse:
        user, path = _asked(request.path, ctx)
        await self._run(["rm", "-rf", "--", path], user)
        return pb.RemoveResponse()

    async def move(self, request: pb.MoveRequest, ctx: Context, /) -> pb.MoveResponse:
        user, source = _asked(request.source, ctx)
        _, destination = _asked(request.destination, ctx)
        await self._entry(source, user)
        await self._run(["mkdir", "-p", "--", posixpath.dirname(destination)], user)
        await self._run(["mv", "-T", "--", source, destination], user)
        return pb.MoveResponse(entry=await self._entry(destination, user))

    async def download(self, request: Request) -> Response:
        """`GET /files`."""
        try:
            user = named(request.query_params.get("username"))
            path = resolved(request.query_params.get("path", ""), user)
            return Response(await self._box.read(path, user), media_type="application/octet-stream")
        except UnknownUser as error:
            return _refused(401, str(error))
        except FileNotFoundError:
            return _refused(404, f"path '{path}' does not exist")
        except IsADirectoryError:
            return _refused(400, f"path '{path}' is a directory")
        except BadPath as error:
            return _refused(400, str(error))
        except OSError as error:
            return _refused(500, str(error))

    async def upload(self, request: Request) -> Response:
        """`POST /files`: one file as the body, or several as a form."""
        try:
            user = named(request.query_params.get("username"))
            written = []
            for given, data in await _uploaded(request):
                path = resolved(given, user)
                await self._box.write(path, data, user)
                written.append({"name": posixpath.basename(path), "path": path, "type": "file"})
        except UnknownUser as error:
            return _refused(401, str(error))
        except (BadPath, IsADirectoryError, gzip.BadGzipFile) as error:
            return _refused(400, str(error))
        except OSError as error:
            return _refused(500, str(error))
        return JSONResponse(written)

    async def _entry(self, path: str, user: User) -> pb.EntryInfo:
        """Raises: ConnectError."""
        shown = await self._run(["find", path, "-maxdepth", "0", "-printf", SHOWN], user)
        return _entries(shown)[0]

    async def _run(self, argv: Sequence[str], user: User) -> bytes:
        """Raises: ConnectError, for a path that is not there or may not be touched."""
        try:
            process = await self._box.exec(argv, user=user, env={"LC_ALL": "C"})
        except BoxNotRunning as error:
            raise ConnectError(Code.UNAVAILABLE, str(error)) from error
        process.stdin.close()
        said = await process.stdout.read()
        complaint = (await process.stderr.read()).decode(errors="replace").strip()
        if await process.wait() == 0:
            return said
        missing = "No such file or directory" in complaint
        raise ConnectError(Code.NOT_FOUND if missing else Code.INTERNAL, complaint)


def _asked(path: str, ctx: Context) -> tuple[User, str]:
    """Raises: ConnectError."""
    user = user_of(ctx.request_headers)
    try:
        return user, resolved(path, user)
    except BadPath as error:
        raise ConnectError(Code.INVALID_ARGUMENT, str(error)) from error


def _entries(shown: bytes) -> list[pb.EntryInfo]:
    entries = []
    for record in shown.split(b"\0")[:-1]:
        facts, _, raw = record.partition(b"\n")
        kind, size, mode, user, group, changed, target = facts.decode().split("|", 6)
        path = posixpath.normpath(raw.decode(errors="surrogateescape"))
        seconds, _, fraction = changed.partition(".")
        entries.append(
            pb.EntryInfo(
                name=posixpath.basename(path),
                type=TYPES.get(kind, pb.FileType.UNSPECIFIED),
                path=path,
                size=int(size),
                mode=int(mode, 8),
                owner=user,
                group=group,
                modified_time=Timestamp(seconds=int(seconds), nanos=int(fraction[:9] or 0)),
                symlink_target=target or None,
                is_symlink=kind == "l",
            )
        )
    return entries


async def _uploaded(request: Request) -> list[tuple[str, bytes]]:
    """Raises: BadPath, gzip.BadGzipFile."""
    path = request.query_params.get("path")
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/"):
        if not path:
            raise BadPath("path query parameter is required for raw body upload")
        data = await request.body()
        packed = request.headers.get("content-encoding") == "gzip"
        return [(path, gzip.decompress(data) if packed else data)]
    files = []
    async with request.form() as form:
        for name, part in form.multi_items():
            if name == "file" and isinstance(part, UploadFile):
                files.append((path or part.filename or "", await part.read()))
    return files


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status)
