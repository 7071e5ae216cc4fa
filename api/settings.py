"""Everything that can be set, read from the environment once, in `main`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from api.hosts import not_hosts
from contracts.bodies import MAX_PROMPT_CHARS
from contracts.logs import LogFormat

MIN_TOKEN_CHARS = 16


class StorageSettings(BaseSettings):
    """Where sessions are kept; all that a backup needs to know."""

    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    # may carry a password
    database_url: SecretStr
    s3_endpoint: str
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    s3_bucket: str = "sessions"
    s3_state_bucket: str = "state"


class Settings(StorageSettings):
    api_host: str = "127.0.0.1"
    api_port: int = Field(8000, ge=1, le=65535)
    api_token: SecretStr | None = Field(None, min_length=MIN_TOKEN_CHARS)
    # wins over the token itself, and may be replaced while the api runs
    api_token_file: Path | None = None
    allowed_hosts: str = ""
    sessions_per_token: int = Field(10_000, ge=1)
    audit_days: float = Field(90.0, gt=0, le=36_500)
    audit_rows: int = Field(1_000_000, ge=1)
    sidecar_url: str
    sidecar_secret: SecretStr
    default_harness: str = "claude"
    default_provider: str = "local"
    upload_bytes: int = Field(1 << 30, ge=0)
    body_bytes: int = Field(4 << 20, ge=1 << 16)
    prompt_chars: int = Field(MAX_PROMPT_CHARS, ge=1)
    # A folder as an archive, before it is packed; 0: any size.
    zip_bytes: int = Field(10 << 30, ge=0)
    zip_files: int = Field(100_000, ge=0)
    # What a session may keep in its workspace; 0: any number.
    session_bytes: int = Field(10 << 30, ge=0)
    session_files: int = Field(200_000, ge=0)
    # Streams that are open at a time, and how long a client may leave unread what it asked for.
    followers: int = Field(1000, ge=1)
    unread_seconds: float = Field(60.0, gt=0)
    permission_seconds: float = Field(3600.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, given: str) -> str:
        if wrong := not_hosts(given):
            raise ValueError(f"{wrong[0]!r} is no host; name or name:port, with commas between")
        return given

    @model_validator(mode="after")
    def _has_a_token(self) -> Self:
        if self.api_token_file is None:
            if self.api_token is None:
                raise ValueError("HOLDFAST_API_TOKEN or HOLDFAST_API_TOKEN_FILE must be set")
            return self
        try:
            token = self.api_token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ValueError(f"HOLDFAST_API_TOKEN_FILE cannot be read: {error.strerror}") from None
        if len(token) < MIN_TOKEN_CHARS:
            raise ValueError(
                f"HOLDFAST_API_TOKEN_FILE has no token of at least {MIN_TOKEN_CHARS} characters"
            )
        return self


def problems(error: ValidationError) -> list[str]:
    """What is wrong with which variable; never the input, which may be a secret."""
    found = []
    for each in error.errors(include_input=False, include_url=False):
        name = "_".join(str(part) for part in each["loc"]).upper()
        # what is wrong with several of them together names them itself
        named = f"HOLDFAST_{name}: " if name else ""
        found.append(f"{named}{each['msg'].removeprefix('Value error, ')}")
    return found
