"""Where the checkout and the data directory are.

`holdfast status` needs nothing else of the settings, and reading all of them takes several times
as long as the rest of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DATA_DIR = Path(".holdfast")
_VARIABLE = "HOLDFAST_DATA_DIR"
_CHECKOUT = Path(__file__).resolve().parent.parent


def project_root() -> Path:
    """The checkout that this code runs from, else the current directory."""
    if (_CHECKOUT / "harnesses" / "package-lock.json").is_file():
        return _CHECKOUT
    return Path.cwd()


def env_file() -> Path:
    return project_root() / ".env"


def absolute_data_dir(data_dir: Path) -> Path:
    """A relative one is relative to the checkout, not to the shell."""
    return (project_root() / data_dir.expanduser()).resolve()


def find_data_dir() -> Path:
    """The same as `load_settings().data`: from the environment, then `.env`."""
    value = _value(os.environ) or _value(_dotenv())
    return absolute_data_dir(Path(value) if value else DATA_DIR)


def _dotenv() -> dict[str, str | None]:
    path = env_file()
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    return dotenv_values(path, encoding="utf8")


def _value(variables: Mapping[str, str | None]) -> str | None:
    """As settings are found: in any case, an empty one not at all."""
    found = {name.lower(): value for name, value in variables.items() if value}
    return found.get(_VARIABLE.lower())
