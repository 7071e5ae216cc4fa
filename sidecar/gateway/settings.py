"""What the gateway is told by its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AnyHttpUrl, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from contracts.egress import pattern
from contracts.logs import LogFormat
from sidecar.gateway.egress.proxy import Rules

# Where packages come from: Python, JavaScript, Rust, Go, Ruby, Java, Debian, Ubuntu, Alpine.
PACKAGES = (
    *("pypi.org", "files.pythonhosted.org"),
    *("registry.npmjs.org", "registry.yarnpkg.com"),
    *("index.crates.io", "static.crates.io"),
    *("proxy.golang.org", "sum.golang.org"),
    *("rubygems.org", "index.rubygems.org"),
    *("repo.maven.apache.org", "repo1.maven.org"),
    *("deb.debian.org", "security.debian.org"),
    *("archive.ubuntu.com", "security.ubuntu.com"),
    "dl-cdn.alpinelinux.org",
)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

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

    # What sessions with `allow` may reach, and what holds for every session that has a way out.
    egress_allow: Annotated[tuple[str, ...], NoDecode] = PACKAGES
    egress_ports: Annotated[tuple[int, ...], NoDecode] = (80, 443)
    egress_tunnels: int = Field(32, ge=1, le=200)
    egress_bytes: int = Field(4 << 30, ge=0)
    egress_idle_seconds: float = Field(300.0, gt=0)

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

    @field_validator("egress_allow", "egress_ports", mode="before")
    @classmethod
    def _by_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(each.strip() for each in value.split(",") if each.strip())

    @field_validator("egress_allow")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(pattern(each) for each in value)

    @field_validator("egress_ports")
    @classmethod
    def _ports(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not all(0 < port <= 0xFFFF for port in value):
            raise ValueError("a port is a number from 1 to 65535")
        return value

    @property
    def egress_rules(self) -> Rules:
        return Rules(
            allow=self.egress_allow,
            ports=frozenset(self.egress_ports),
            tunnels=self.egress_tunnels,
            bytes=self.egress_bytes,
            idle_seconds=self.egress_idle_seconds,
        )

    @model_validator(mode="after")
    def _port_needs_a_secret(self) -> Self:
        if self.gateway_port is not None and self.gateway_secret is None:
            raise ValueError("HOLDFAST_GATEWAY_PORT needs HOLDFAST_GATEWAY_SECRET")
        return self
