"""A receipt checked from outside: every file of its manifest, read from the store."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts import errors
from contracts.bodies import Manifest, ManifestEntry, Turn

if TYPE_CHECKING:
    from client.files import Files

# How many files are read at once.
READERS = 8


@dataclass(frozen=True)
class StoredManifest:
    """A manifest, and the sha256 of the bytes that it came in."""

    manifest: Manifest
    sha256: str


@dataclass(frozen=True)
class Difference:
    """What the store has in place of what the manifest says."""

    path: str
    problem: str


def check_manifest(stored: StoredManifest, turn: Turn) -> list[Difference]:
    """Whether a manifest is the one that the turn's receipt stands for."""
    receipt, manifest = turn.receipt, stored.manifest
    if receipt is None:
        return [Difference("", "the turn has no receipt")]
    files = [entry for entry in manifest.entries if entry.kind == "file"]
    told: list[Difference] = []
    if stored.sha256 != receipt.manifest_sha256:
        told.append(Difference("", "the manifest is not the one that the receipt names"))
    if (manifest.session_id, manifest.turn_id) != (turn.session_id, turn.id):
        told.append(Difference("", "the manifest is another turn's"))
    if sum(entry.size or 0 for entry in files) != receipt.bytes:
        told.append(Difference("", f"the manifest's files do not add up to {receipt.bytes} bytes"))
    return told


async def differences(files: Files, manifest: Manifest) -> AsyncGenerator[Difference, None]:
    """Reads every file of a manifest from the store; yields those that are not as it says.

    Raises: Unavailable and what else is no answer about a file.
    """
    wanted = [entry for entry in manifest.entries if entry.kind == "file"]
    for start in range(0, len(wanted), READERS):
        batch = wanted[start : start + READERS]
        trouble: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_compare(files, manifest, entry)) for entry in batch]
        except* errors.HoldfastError as several:
            trouble = several.exceptions[0]  # as itself: the caller knows nothing of the tasks
        if trouble is not None:
            raise trouble
        for task in tasks:
            difference = task.result()
            if difference is not None:
                yield difference


async def _compare(files: Files, manifest: Manifest, entry: ManifestEntry) -> Difference | None:
    size, digest = 0, hashlib.sha256()
    try:
        async with aclosing(files.chunks(manifest.session_id, entry.path)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                digest.update(chunk)
    except (errors.FileNotFound, errors.InvalidPath) as error:
        return Difference(entry.path, f"it cannot be read: {error.message}")
    if size != entry.size:
        return Difference(entry.path, f"{size} bytes, the manifest says {entry.size}")
    if digest.hexdigest() != entry.sha256:
        return Difference(entry.path, "its content differs")
    return None
