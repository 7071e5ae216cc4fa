"""Everything that can be set, read from the environment once, in `main`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", frozen=True, extra="ignore")

    api_host: str = "127.0.0.1"
    api_port: int = Field(8000, ge=1, le=65535)
    api_token: SecretStr = Field(min_length=16)
    # may carry a password
    database_url: SecretStr
    sidecar_url: str
    sidecar_secret: SecretStr
    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: SecretStr
    s3_bucket: str = "sessions"
    s3_state_bucket: str = "state"
    default_harness: str = "claude"
    default_provider: str = "local"
    upload_bytes: int = Field(1 << 30, ge=0)
    permission_seconds: float = Field(3600.0, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
