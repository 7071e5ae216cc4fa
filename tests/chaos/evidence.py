"""What is needed to understand a violation after its stack is gone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.census import take_census
from tests.chaos.follower import Follower
from tests.chaos.report import Violation

LOG_BYTES = 300_000


def keep_evidence(
    place: Path,
    where: str,
    violations: Iterable[Violation],
    data_dir: Path,
    followers: Iterable[Follower],
) -> Path:
    """A directory with what was violated, who lives, the ends of all logs, the transcripts."""
    directory = place / re.sub(r"[^a-z0-9]+", "-", where.lower())[:80]
    directory.mkdir(parents=True, exist_ok=True)
    told = "\n".join(f"{violation.kind}: {violation.what}" for violation in violations)
    living = [word for words in take_census(data_dir).of_sessions().values() for word in words]
    (directory / "violations.txt").write_text(f"{told}\n\n" + "\n".join(living) + "\n")
    for log in (data_dir / "logs").glob("*.log"):
        (directory / log.name).write_bytes(log.read_bytes()[-LOG_BYTES:])
    for follower in followers:
        lines = b"\n".join(follower.shown[seq] for seq in sorted(follower.shown))
        (directory / f"{follower.session_id}.ndjson").write_bytes(lines + b"\n")
    return directory
