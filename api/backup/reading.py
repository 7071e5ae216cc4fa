"""A backup read to its end, and held against its own lists; what becomes of it is the target's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from api.backup.archive import (
    FILES,
    FORMAT,
    HEAD,
    MANIFEST,
    STATE,
    Member,
    Written,
    members,
)
from api.backup.create import NO_SESSION
from api.backup.errors import BadBackup, NewerBackup
from api.db.migrate import load

CUT = "It was cut off, or never finished: take another one."
CHANGED = "It was changed after it was written: take another one."


@dataclass(frozen=True)
class Head:
    """How a backup begins."""

    schema: int
    created_at: str
    tables: dict[str, list[str]]

    @classmethod
    def parse(cls, plain: Any) -> Head:
        """Raises: BadBackup, when this version cannot read what follows."""
        try:
            if plain["format"] != FORMAT:
                raise BadBackup(
                    f"The backup has format {plain['format']}, this version reads {FORMAT}.",
                    hint="Use the version of Holdfast that made it, or a newer one.",
                )
            ours = [(each.version, each.name, each.sha256) for each in load()]
            theirs = [tuple(each) for each in plain["migrations"]]
            head = cls(plain["schema"], plain["created_at"], plain["tables"])
        except (KeyError, TypeError) as error:
            raise BadBackup(f"{HEAD} is not of a backup.", hint=CHANGED) from error
        if len(theirs) > len(ours):
            raise NewerBackup(
                f"The backup has schema {head.schema}, this version of Holdfast knows {len(ours)}.",
                hint="Use the version of Holdfast that made it, or a newer one.",
            )
        if theirs != ours[: len(theirs)]:
            raise BadBackup(
                "The backup's schema was made by other migrations than this version's.",
                hint="Use the version of Holdfast that made it.",
            )
        return head


class Target(Protocol):
    """Where a backup goes."""

    async def begin(self, head: Head) -> None: ...

    async def object(self, bucket: str, key: str, member: Member) -> None:
        """Take all of the member's bytes; an object that comes again replaces the one before."""

    async def rows(self, table: str, columns: list[str], text: bytes) -> int:
        """How many they are."""

    async def session(self, objects: dict[str, dict[str, Written]], beside: list[str]) -> None:
        """All of a session has come: by bucket and key. `beside` came and does not count."""


@dataclass
class Content:
    """What a backup has, as it was read."""

    schema: int = 0
    created_at: str = ""
    sessions: int = 0
    files: int = 0
    rows: int = 0
    receipts: int = 0
    mid_turn: list[str] = field(default_factory=list)


class Reading:
    """One pass over a file. What is in memory at a time is one session's list."""

    def __init__(self, target: Target, say: Callable[[str], None]) -> None:
        self._target = target
        self._say = say
        self._head: Head | None = None
        self._seen: dict[str, Written] = {}
        self._listed: dict[str, str] = {}
        self._over = False
        self.content = Content()

    async def run(self, file: IO[bytes]) -> Content:
        """Raises: BadBackup, and what the target raises."""
        async for member in members(file):
            if self._over:
                raise BadBackup(f"{member.name} stands behind the manifest.", hint=CHANGED)
            if self._head is None:
                await self._begin(member)
            else:
                await self._take(member, self._head)
        if not self._over:
            raise BadBackup("The file has no manifest: it is not a whole backup.", hint=CUT)
        return self.content

    async def _begin(self, member: Member) -> None:
        if member.name != HEAD:
            raise BadBackup("The file is not a backup of Holdfast.", hint=f"No {HEAD} is in it.")
        self._head = Head.parse(await member.json())
        self.content.schema = self._head.schema
        self.content.created_at = self._head.created_at
        await self._target.begin(self._head)

    async def _take(self, member: Member, head: Head) -> None:
        kind, _, rest = member.name.partition("/")
        takes: dict[str, Callable[[], Awaitable[None]]] = {
            FILES: lambda: self._object(FILES, rest, member),
            STATE: lambda: self._object(STATE, rest, member),
            "rows": lambda: self._rows(rest, member, head),
            "sessions": lambda: self._session(member),
            MANIFEST: lambda: self._manifest(member),
        }
        if kind not in takes:
            raise BadBackup(f"{member.name} does not belong in a backup.", hint=CHANGED)
        await takes[kind]()

    async def _object(self, bucket: str, key: str, member: Member) -> None:
        await self._target.object(bucket, key, member)
        self._seen[member.name] = member.written

    async def _rows(self, place: str, member: Member, head: Head) -> None:
        owner, _, rest = place.partition("/")
        table = rest.partition("/")[0]
        if table not in head.tables:
            raise BadBackup(f"{member.name} is of a table that is not named.", hint=CHANGED)
        text = await member.read()
        self.content.rows += await self._target.rows(table, head.tables[table], text)
        if owner == NO_SESSION:
            self._listed[member.name] = member.written.sha256
        else:
            self._seen[member.name] = member.written

    async def _session(self, member: Member) -> None:
        plain = await member.json()
        seen, self._seen = self._seen, {}
        objects: dict[str, dict[str, Written]] = {}
        for bucket in (FILES, STATE):
            listed = {key: Written(**each) for key, each in plain[bucket].items()}
            for key, each in listed.items():
                _same(seen.pop(f"{bucket}/{key}", None), each, f"{bucket}/{key}")
            objects[bucket] = listed
        for name, each in plain["rows"].items():
            _same(seen.pop(name, None), Written(**each), name)
        if any(name.startswith("rows/") for name in seen):
            raise BadBackup(f"There are rows that {member.name} does not name.", hint=CHANGED)
        await self._target.session(objects, list(seen))
        self._listed[member.name] = member.written.sha256
        self.content.sessions += 1
        self.content.files += len(objects[FILES])
        self.content.receipts += plain["receipts"]
        if plain["running_turn"] is not None:
            self.content.mid_turn.append(plain["session_id"])
        self._say(f"{self.content.sessions} sessions, {self.content.files} files")

    async def _manifest(self, member: Member) -> None:
        plain = await member.json()
        if self._seen:
            raise BadBackup("A session is not there as a whole.", hint=CUT)
        if plain["members"] != self._listed:
            raise BadBackup("The manifest does not name what is in the file.", hint=CHANGED)
        for name in ("sessions", "files", "rows", "receipts"):
            if plain[name] != getattr(self.content, name):
                raise BadBackup(f"The manifest counts other {name}.", hint=CHANGED)
        self._over = True


def _same(found: Written | None, listed: Written, name: str) -> None:
    if found is None:
        raise BadBackup(f"{name} is missing.", hint=CUT)
    if found != listed:
        raise BadBackup(f"{name} is not what it was when the backup was made.", hint=CHANGED)
