"""What the gateway is told by its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import AnyHttpUrl, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.logs import LogFormat


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_ignore_empty=True, frozen=True)

    gateway_control: Path
    gateway_dir: Path
    # For sandboxes in a cloud: a port, of loopback unless the gateway has a container to itself,
    # and what their tokens are made with.
    gateway_port: int | None = None
    gateway_host: str = "127.0.0.1"
    gateway_secret: SecretStr | None = None
    # A table of prices that takes the place of ours.
    model_prices: Path | None = None
    log_level: str = "INFO"
    log_format: LogFormat = "text"

    # The vendors' own names, so that a key which is set already is found.
    anthropic_api_key: SecretStr | None = Field(None, validation_alias="ANTHROPIC_API_KEY")
    openai_api_key: SecretStr | None = Field(None, validation_alias="OPENAI_API_KEY")
    anthropic_base_url: AnyHttpUrl = Field(
        AnyHttpUrl("https://api.anthropic.com"), validation_alias="ANTHROPIC_BASE_URL"
    )
    openai_base_url: AnyHttpUrl = Field(
        AnyHttpUrl("https://api.openai.com"), validation_alias="OPENAI_BASE_URL"
    )

    @field_validator("anthropic_api_key", "openai_api_key", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Of a variable that is so already; a file with nothing in it says the same."""
        return None if value == "" else value

    @model_validator(mode="after")
    def _port_needs_a_secret(self) -> Self:
        if self.gateway_port is not None and self.gateway_secret is None:
            raise ValueError("HOLDFAST_GATEWAY_PORT needs HOLDFAST_GATEWAY_SECRET")
        return self
