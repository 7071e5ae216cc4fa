"""The sidecar's settings, from the environment, read once in `__main__`."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sidecar.workspace.choice import EngineName


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore")

    sidecar_listen: str
    sidecar_secret: SecretStr
    data_dir: Path
    run_dir: Path
    s3_endpoint: str
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    s3_bucket: str = "sessions"
    s3_state_bucket: str = "state"
    filer: str
    harness_dir: Path
    node: Path
    bwrap: Path
    weed: Path
    geesefs: Path | None = None
    workspace: EngineName = "auto"
    warm_seconds: float = 600
    warm_sandboxes: int = 8
    gateway_control: Path
    default_harness: str = "claude"
    default_provider: str = "local"
    anthropic_model: str | None = None
    openai_model: str | None = None
    log_level: str = "info"

    @field_validator("geesefs", "anthropic_model", "openai_model", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value
