"""Where the stack is: from the environment, or from the data directory of the project around us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts import errors

M = TypeVar("M", bound=BaseModel)

DATA_DIR = ".holdfast"
UP_HINT = "is the stack up? make up"


class ClientSettings(BaseSettings):
    """The client's part of the environment."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    url: str | None = None
    token: SecretStr | None = None
    data_dir: Path | None = None


class StoreSettings(BaseSettings):
    """Direct access to the object store, for tools that check it independently of the api."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_S3_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    endpoint: str | None = None
    access_key: str | None = None
    secret_key: SecretStr | None = None
    bucket: str = "sessions"


@dataclass(frozen=True)
class Target:
    """A stack to talk to. `data_dir` is set when it was found on this disk."""

    url: str
    token: SecretStr
    data_dir: Path | None = None


class Store(BaseModel):
    """The object store of a stack, as `.holdfast/store.json` says it."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    endpoint: str
    access_key: str
    secret_key: SecretStr
    bucket: str = "sessions"


class _ApiFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str


def from_env() -> Target:
    """The stack that HOLDFAST_URL and HOLDFAST_TOKEN name.

    Raises: InvalidInput when one of the two is missing.
    """
    found = _named(ClientSettings())
    if found is None:
        raise errors.InvalidInput(
            "HOLDFAST_URL and HOLDFAST_TOKEN are not set",
            hint="set both, or run inside a project whose stack is up",
        )
    return found


def discover(
    start: Path | None = None, *, data_dir: Path | None = None, env_file: Path | None = None
) -> Target:
    """The stack that the environment names, else `env_file`, else a data directory on this disk.

    That directory is HOLDFAST_DATA_DIR, else `data_dir`, else the nearest `.holdfast` at or
    above `start` (the working directory).
    Raises: InvalidInput when a source is half set or damaged; Unavailable when there is none.
    """
    settings = ClientSettings()
    named = _named(settings) or (env_file and _named(ClientSettings(_env_file=env_file)))
    if named:
        return named
    data_dir = settings.data_dir or data_dir or find_data_dir(start or Path.cwd())
    if data_dir is None:
        raise errors.Unavailable(
            f"no {DATA_DIR} directory here or above, and HOLDFAST_URL is not set", hint=UP_HINT
        )
    url = _read_json(data_dir / "api.json", _ApiFile).url
    return Target(url, read_token(data_dir / "token"), data_dir)


def _named(settings: ClientSettings) -> Target | None:
    """Url and token come from one source: a token never goes where it was not made for."""
    if settings.url is None and settings.token is None:
        return None
    if settings.url is None or settings.token is None:
        raise errors.InvalidInput(
            "of HOLDFAST_URL and HOLDFAST_TOKEN only one is set", hint="set both, or none"
        )
    return Target(settings.url, settings.token)


def open_store(target: Target) -> Store:
    """The object store behind `target`: HOLDFAST_S3_* if set, else `store.json` beside the token.

    Raises: InvalidInput, Unavailable.
    """
    found = StoreSettings()
    if found.endpoint and found.access_key and found.secret_key:
        return Store(
            endpoint=found.endpoint,
            access_key=found.access_key,
            secret_key=found.secret_key,
            bucket=found.bucket,
        )
    if target.data_dir is None:
        raise errors.InvalidInput(
            "the object store of this stack is not known",
            hint="set HOLDFAST_S3_ENDPOINT, HOLDFAST_S3_ACCESS_KEY and HOLDFAST_S3_SECRET_KEY",
        )
    return _read_json(target.data_dir / "store.json", Store)


def find_data_dir(start: Path) -> Path | None:
    """The nearest `.holdfast` directory at or above `start`."""
    here = start.resolve()
    for folder in (here, *here.parents):
        if (folder / DATA_DIR).is_dir():
            return folder / DATA_DIR
    return None


def read_token(path: Path) -> SecretStr:
    """A token kept in a file, so that it never stands on a command line.

    Raises: Unavailable, InvalidInput.
    """
    token = _read(path).strip()
    if not token:
        raise errors.InvalidInput(f"{path} is empty")
    return SecretStr(token)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise errors.Unavailable(
            f"cannot read {path}: {error.strerror or type(error).__name__}", hint=UP_HINT
        ) from error


def _read_json(path: Path, shape: type[M]) -> M:
    try:
        return shape.model_validate_json(_read(path))
    # The message leaves the content out: this file may hold a secret.
    except ValidationError:
        raise errors.InvalidInput(
            f"{path} is damaged", hint="make down && make up writes it anew"
        ) from None
