"""What can be asked of boxd, whichever way it comes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import Any

import files
import living
import workspace
from asked import Answer, Refused, Request
from commands import Children
from freezing import Freezer, Holder
from threads import Threads

MOST_FROZEN_SECONDS = 600


class Work:
    def __init__(self) -> None:
        self.children = Children()
        self.freezer = Freezer()
        self._files = Threads("files")
        self._workspace = workspace.Workspace(self.children, self._files)
        self._lease: Holder | None = None
        self._thawing: asyncio.TimerHandle | None = None

    async def answer(self, request: Request, body: bytes, holder: Holder) -> Answer:
        """Never raises but for a cancellation. After a `freeze` the caller lets `holder` go."""
        try:
            return await self._do(request, body, holder)
        except Refused as refused:
            return {"error": str(refused), "kind": refused.kind}, b""
        except OSError as error:
            kind = "missing" if isinstance(error, FileNotFoundError) else ""
            return {"error": f"{error.strerror}: {error.filename}", "kind": kind}, b""
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"not a request: {error!r}", "kind": ""}, b""

    async def _do(self, request: Request, body: bytes, holder: Holder) -> Answer:
        """`kill` and `thaw` wait for no thread and no other call: they end what hangs."""
        op = request["op"]
        if op == "exec":
            return await self.children.run(request, body)
        if op == "spawn":
            await self.children.start(request, subprocess.DEVNULL, {})
        elif op == "freeze":
            await self.freezer.freeze(holder)
        elif op == "freeze_for":
            await self._freeze_for(request["seconds"])
        elif op == "thaw":
            return {"was_frozen": self._thaw()}, b""
        elif op == "kill":
            await living.kill(request["tokens"])
        elif op == "processes":
            return {"processes": await self.children.reader.describe()}, b""
        elif op == "held":
            return {"inodes": await self.children.reader.held()}, b""
        elif op in workspace.OPS:
            return await self._workspace.do(op, request, body)
        else:
            return {}, await self._files.run(lambda: self._file_work(op, request, body))
        return {}, b""

    async def _freeze_for(self, seconds: float) -> None:
        """Until `thaw`, or until nobody has said so for that long: who froze may have died."""
        before, self._lease = self._lease, Holder()
        mine = self._lease
        self._cancel_timer()
        try:
            await self.freezer.freeze(mine)
        except BaseException:
            self.freezer.thaw(mine)
            raise
        finally:
            if before is not None:
                self.freezer.thaw(before)
        self._cancel_timer()  # of one that was frozen meanwhile
        bound = min(float(seconds), MOST_FROZEN_SECONDS)
        self._thawing = asyncio.get_running_loop().call_later(bound, self._thaw)

    def _thaw(self) -> bool:
        was_frozen = self._thawing is not None
        self._cancel_timer()
        if self._lease is not None:
            self.freezer.thaw(self._lease)
            self._lease = None
        return was_frozen

    def _cancel_timer(self) -> None:
        if self._thawing is not None:
            self._thawing.cancel()
            self._thawing = None

    def _file_work(self, op: str, request: dict[str, Any], body: bytes) -> bytes:
        if op == "read":
            return Path(request["path"]).read_bytes()
        if op == "pack":
            return files.pack(request["kept"], request["left"], request["most_bytes"])
        if op == "write":
            files.write(Path(request["path"]), body, request["mode"])
        elif op == "unpack":
            files.unpack(body)
        elif op == "remove":
            with contextlib.suppress(FileNotFoundError):
                Path(request["path"]).unlink()
        else:
            raise Refused(f"there is no {op!r}")
        return b""
