"""Secrets as files: what an orchestrator mounts, one file per setting, named as its variable."""

from __future__ import annotations

from pathlib import Path

SECRETS = Path("/run/secrets")


def secret_files(directory: Path = SECRETS) -> Path | None:
    """Where a service looks for settings that are not in its environment; None if nowhere."""
    return directory if directory.is_dir() else None
