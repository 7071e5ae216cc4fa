"""What a receipt covers, entry by entry, kept in the state bucket where no sandbox can reach it.

`<session>/manifests/<turn>.json` is the document, `<session>/manifests/latest.json` the pointer to
the newest, `<session>/manifests/edited.json` what a user has changed since then. The pointer is
replaced only by whoever read it, and never by an older epoch: a sidecar that lost the session's
lease without noticing is fenced here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from contracts.errors import StaleEpoch, StoreUnavailable
from contracts.events import dumps
from sidecar.workspace.store import Store

VERSION = 1
# A rival that replaces the pointer between our read and our write holds another epoch: one of the
# two is refused at the next look.
TRIES = 5
EDITED = "edited"
MOST_KNOWN = 8

Kind = Literal["file", "directory", "symlink", "special"]


@dataclass(frozen=True)
class Entry:
    """One name of the workspace. Only files have a size and a hash, only symlinks a target."""

    path: str
    kind: Kind
    size: int | None
    sha256: str | None
    mode: int
    mtime_ns: int
    target: str | None
    md5: str | None = None  # the store's ETag, where it was stored in one piece

    @cached_property
    def document(self) -> bytes:
        """As it stands in a manifest; kept, as most entries are the same at the next barrier."""
        return dumps({name: getattr(self, name) for name in FIELDS})


FIELDS = ("path", "kind", "size", "sha256", "mode", "mtime_ns", "target", "md5")


@dataclass(frozen=True)
class Manifest:
    """All that a turn left behind. `entries` are sorted by path."""

    session_id: str
    turn_id: str
    epoch: int
    engine: str
    entries: tuple[Entry, ...]

    @cached_property
    def document(self) -> bytes:
        """As it is stored."""
        head = dumps(
            {
                "v": VERSION,
                "session_id": self.session_id,
                "turn_id": self.turn_id,
                "epoch": self.epoch,
                "engine": self.engine,
            }
        )
        entries = b",".join(entry.document for entry in self.entries)
        return head.removesuffix(b"}") + b',"entries":[' + entries + b"]}"

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.document).hexdigest()

    @classmethod
    def parse(cls, document: bytes) -> Manifest:
        """Raises: ValueError, for a document of another version, or none at all."""
        try:
            stored = _STORED.validate_json(document)
        except ValidationError:
            raise ValueError(f"not a manifest of version {VERSION}") from None
        return cls(
            stored["session_id"],
            stored["turn_id"],
            stored["epoch"],
            stored["engine"],
            stored["entries"],
        )


@with_config(ConfigDict(strict=True))
class _Stored(TypedDict):
    """A manifest as it is stored; fields of a later release are left out."""

    v: Literal[1]
    session_id: str
    turn_id: str
    epoch: int
    engine: str
    entries: tuple[Entry, ...]


@with_config(ConfigDict(strict=True))
class _Pointer(TypedDict):
    turn_id: str
    epoch: int
    manifest_sha256: str


@with_config(ConfigDict(strict=True))
class _Epoch(TypedDict):
    epoch: int


@with_config(ConfigDict(strict=True))
class _Edited(TypedDict):
    turn_id: str
    edits: list[tuple[str, str | None]]


_STORED = TypeAdapter(_Stored)
_POINTER = TypeAdapter(_Pointer)
_EPOCH = TypeAdapter(_Epoch)
_EDITED = TypeAdapter(_Edited)


@dataclass(frozen=True)
class Edit:
    """A change by a user after a receipt: what it says of `path` and all below holds for `target`
    from then on, or no more."""

    path: str
    target: str | None = None

    def of(self, entry: Entry) -> Entry | None:
        """What is left of an entry."""
        if not f"{entry.path}/".startswith(f"{self.path}/"):
            return entry
        if self.target is None:
            return None
        return replace(entry, path=self.target + entry.path[len(self.path) :])


class Manifests:
    """The manifests of all sessions. Raises, in every call: StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        """`store` is the state bucket."""
        self._store = store
        self._known: dict[str, Manifest] = {}  # the last ones that were asked for

    @property
    def bucket(self) -> str:
        return self._store.bucket

    async def latest(self, session_id: str) -> Manifest | None:
        """The manifest of the session's newest receipt, as far as it holds after what a user has
        changed since; None before the first."""
        pointer, _ = await self._pointer(session_id)
        if pointer is None:
            return None
        manifest = await self._document(session_id, pointer)
        if manifest is None:
            return None
        edits, _ = await self._edits(session_id, pointer["turn_id"])
        entries: Iterable[Entry] = manifest.entries
        for edit in edits:
            entries = [left for entry in entries if (left := edit.of(entry)) is not None]
        return replace(manifest, entries=tuple(sorted(entries, key=lambda entry: entry.path)))

    async def _document(self, session_id: str, pointer: _Pointer) -> Manifest | None:
        known = self._known.get(session_id)
        if known is None or known.sha256 != pointer["manifest_sha256"]:
            key = _key(session_id, pointer["turn_id"])
            found = await self._store.get(key)
            if found is None:
                return None
            with _readable(key):
                known = Manifest.parse(found[0])
        self._known.pop(session_id, None)
        self._known[session_id] = known
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    async def edited(self, session_id: str, edit: Edit) -> None:
        """Note a change by a user, so that the next mount does not undo it. Nothing to note before
        the first receipt."""
        for _ in range(TRIES):
            pointer, _ = await self._pointer(session_id)
            if pointer is None:
                return
            edits, etag = await self._edits(session_id, pointer["turn_id"])
            plain = [(each.path, each.target) for each in (*edits, edit)]
            document = dumps({"turn_id": pointer["turn_id"], "edits": plain})
            if await self._store.put(_key(session_id, EDITED), document, replaces=etag):
                return
        raise StoreUnavailable(
            f"the note of a change was replaced {TRIES} times under our hands", hint="Try again."
        )

    async def _edits(self, session_id: str, turn_id: str) -> tuple[list[Edit], str | None]:
        """What was changed since the receipt of this turn."""
        found = await self._store.get(_key(session_id, EDITED))
        if found is None:
            return [], None
        with _readable(_key(session_id, EDITED)):
            plain = _EDITED.validate_json(found[0])
        edits = plain["edits"] if plain["turn_id"] == turn_id else []
        return [Edit(*each) for each in edits], found[1]

    async def put(self, manifest: Manifest) -> str:
        """Store it and make it the latest; its sha256.

        Raises: StaleEpoch, when a holder of a later lease has stored one; nothing is overwritten.
        """
        pointer, etag = await self._pointer(manifest.session_id)
        _refuse_stale(manifest, 0 if pointer is None else pointer["epoch"])
        await self._put_document(manifest)
        named = dumps(
            {
                "turn_id": manifest.turn_id,
                "epoch": manifest.epoch,
                "manifest_sha256": manifest.sha256,
            }
        )
        for _ in range(TRIES):
            if await self._store.put(_key(manifest.session_id, "latest"), named, replaces=etag):
                return manifest.sha256
            pointer, etag = await self._pointer(manifest.session_id)
            _refuse_stale(manifest, 0 if pointer is None else pointer["epoch"])
        raise StoreUnavailable(
            f"the pointer to the latest manifest changed {TRIES} times under our hands",
            hint="Two sidecars write one session: run another turn.",
        )

    async def _put_document(self, manifest: Manifest) -> None:
        key = _key(manifest.session_id, manifest.turn_id)
        etag: str | None = None
        for _ in range(TRIES):
            if await self._store.put(key, manifest.document, replaces=etag):
                return
            # This turn's barrier ran before: by us, or by a sidecar that held the lease then.
            found = await self._store.get(key)
            etag = None
            if found is not None:
                with _readable(key):
                    stored = _EPOCH.validate_json(found[0])
                _refuse_stale(manifest, stored["epoch"])
                etag = found[1]
        raise StoreUnavailable(
            f"the manifest of turn {manifest.turn_id} changed {TRIES} times under our hands",
            hint="Two sidecars write one session: run another turn.",
        )

    async def _pointer(self, session_id: str) -> tuple[_Pointer | None, str | None]:
        key = _key(session_id, "latest")
        found = await self._store.get(key)
        if found is None:
            return None, None
        with _readable(key):
            return _POINTER.validate_json(found[0]), found[1]


def _key(session_id: str, name: str) -> str:
    return f"{session_id}/manifests/{name}.json"


@contextlib.contextmanager
def _readable(key: str) -> Iterator[None]:
    """What does not parse was not written by us, or by a later release: waiting does not help, and
    to go on without it could undo what it says."""
    try:
        yield
    except ValueError as error:
        raise StoreUnavailable(
            f"{key} in the state bucket cannot be read",
            hint="Restore the object from a backup, or move it away to start without it.",
        ) from error


def _refuse_stale(manifest: Manifest, stored: int) -> None:
    if stored > manifest.epoch:
        raise StaleEpoch(
            f"the session's manifest is of epoch {stored}, this turn's is "
            f"{manifest.epoch}: somebody else has taken the session over",
            hint="This turn's receipt is not given; follow the session's newer turn.",
        )
