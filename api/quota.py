"""How much a session may keep in its workspace: looked at before a turn, and before an upload.

Nothing is cut off in the middle: a turn may leave more behind than the quota, which its barrier
measures and its transcript says. The next one is refused then, until files are deleted or the quota
is raised.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from api.store import Measured, Stores
from contracts.bodies import Session
from contracts.errors import OverQuota

# Of so many sessions it is remembered what was put into them since they were measured.
REMEMBERED = 1000


@dataclass
class Used:
    """As far as this process knows. `measured` is what the last receipt said then."""

    files: int
    bytes: int
    measured: tuple[int | None, int | None]


class Quotas:
    """`most_bytes` and `most_files` of 0 mean: any number."""

    def __init__(self, stores: Stores, most_bytes: int, most_files: int) -> None:
        self._stores = stores
        self._most_bytes = most_bytes
        self._most_files = most_files
        self._known: OrderedDict[UUID, Used] = OrderedDict()

    async def check(self, session: Session) -> None:
        """Before a turn. What the last receipt says is believed unless it is too much: then the
        store is asked, as the user may have deleted files since.

        Raises: OverQuota, StoreUnavailable.
        """
        if self._within(session.files or 0, session.bytes or 0):
            return
        now = await self._measure(session.id)
        if not self._within(now.objects, now.bytes):
            raise self._refused("has", now.objects, now.bytes)

    async def admit(self, session: Session, size: int) -> None:
        """Before a file of this size is put into the workspace.

        Raises: OverQuota, StoreUnavailable.
        """
        if not self._most_bytes and not self._most_files:
            return
        told = (session.files, session.bytes)
        used = self._known.pop(session.id, None)
        fresh = used is None or used.measured != told
        if used is None or fresh or not self._within(used.files + 1, used.bytes + size):
            now = await self._measure(session.id)
            used = Used(now.objects, now.bytes, told)
        self._known[session.id] = used
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if not self._within(used.files + 1, used.bytes + size):
            raise self._refused("would have", used.files + 1, used.bytes + size)
        used.files += 1
        used.bytes += size

    async def _measure(self, session_id: UUID) -> Measured:
        return await self._stores.sessions.measure(str(session_id))

    def _within(self, files: int, size: int) -> bool:
        bytes_fit = not self._most_bytes or size <= self._most_bytes
        return bytes_fit and (not self._most_files or files <= self._most_files)

    def _refused(self, has: str, files: int, size: int) -> OverQuota:
        if self._most_bytes and size > self._most_bytes:
            much, setting = f"{size} bytes, the quota is {self._most_bytes}", "SESSION_BYTES"
        else:
            much, setting = f"{files} files, the quota is {self._most_files}", "SESSION_FILES"
        return OverQuota(
            f"The session's workspace {has} {much}.",
            hint=f"Delete files of the session, or raise HOLDFAST_{setting}.",
            files=files,
            bytes=size,
        )
