"""Which stack the user commands talk to: the one that `up`, `down` and `status` operate."""

from __future__ import annotations

from client import Holdfast, Target, discover
from stack.settings import load_settings, project_root


def target() -> Target:
    """The stack of the environment or `.env`, else this checkout's, else the nearest `.holdfast`.

    Raises: InvalidInput, Unavailable, Misconfigured.
    """
    own = load_settings().data
    return discover(
        data_dir=own if (own / "api.json").is_file() else None, env_file=project_root() / ".env"
    )


def connect() -> Holdfast:
    found = target()
    return Holdfast(found.url, found.token, name="cli")
