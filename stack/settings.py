"""Settings of the `holdfast` command: the environment, then `.env` in the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.egress import pattern
from contracts.logs import LogFormat
from stack.errors import Misconfigured
from stack.location import DATA_DIR, absolute_data_dir, env_file
from stack.location import project_root as project_root

# What every child process may know of the caller's environment.
_COMMON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
# Proxies may carry a password: only for the parts that reach beyond this machine.
_NETWORK = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = DATA_DIR
    run_dir: Path | None = None
    cache: Path | None = None
    offline: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "text"

    api_host: str = "127.0.0.1"
    api_port: int = Field(8000, ge=1, le=65535)
    api_token: SecretStr | None = Field(None, min_length=16)
    allowed_hosts: str | None = None
    sessions_per_token: int | None = Field(None, ge=1)
    audit_days: float | None = Field(None, gt=0, le=36_500)
    audit_rows: int | None = Field(None, ge=1)

    default_harness: str = "claude"
    default_provider: str = "local"
    workspace: Literal["auto", "geesefs", "weed", "checkpoint"] = "auto"
    checkpoint_seconds: float | None = Field(None, gt=0)
    permission_seconds: float | None = Field(None, gt=0)
    upload_bytes: int | None = Field(None, ge=0)
    body_bytes: int | None = Field(None, ge=1 << 16)
    prompt_chars: int | None = Field(None, ge=1)
    zip_bytes: int | None = Field(None, ge=0)
    zip_files: int | None = Field(None, ge=0)
    followers: int | None = Field(None, ge=1)
    unread_seconds: float | None = Field(None, gt=0)
    session_bytes: int | None = Field(None, ge=0)
    session_files: int | None = Field(None, ge=0)
    events_per_second: float | None = Field(None, gt=0)
    event_bytes: int | None = Field(None, ge=1 << 16, le=60 << 20)
    turn_events: int | None = Field(None, ge=1)
    turn_bytes: int | None = Field(None, ge=1 << 20)
    turn_seconds: float | None = Field(None, gt=0)
    warm_seconds: float | None = Field(None, ge=0)
    warm_sandboxes: int | None = Field(None, ge=0)
    docker_socket: Path | None = None
    sandbox_image: str | None = None
    docker_memory: int | None = Field(None, ge=64 << 20)
    docker_cpus: float | None = Field(None, gt=0)
    docker_pids: int | None = Field(None, ge=16)
    model_prices: Path | None = None
    gateway_port: int | None = Field(None, ge=1, le=65535)
    gateway_url: str | None = None
    store_port: int | None = Field(None, ge=1, le=55535)
    store_url: str | None = None
    cloud_lifetime: float | None = Field(None, ge=60)
    e2b_api_key: SecretStr | None = Field(None, validation_alias="E2B_API_KEY")
    e2b_api_url: str | None = Field(None, validation_alias="E2B_API_URL")
    e2b_sandbox_url: str | None = Field(None, validation_alias="E2B_SANDBOX_URL")
    e2b_template: str | None = None
    daytona_api_key: SecretStr | None = Field(None, validation_alias="DAYTONA_API_KEY")
    daytona_api_url: str | None = Field(None, validation_alias="DAYTONA_API_URL")
    daytona_target: str | None = Field(None, validation_alias="DAYTONA_TARGET")
    daytona_snapshot: str | None = None
    modal_token_id: SecretStr | None = Field(None, validation_alias="MODAL_TOKEN_ID")
    modal_token_secret: SecretStr | None = Field(None, validation_alias="MODAL_TOKEN_SECRET")
    modal_server_url: str | None = Field(None, validation_alias="MODAL_SERVER_URL")
    modal_app: str | None = None
    modal_image: str | None = None
    modal_runtime: Literal["gvisor", "vm"] | None = None
    egress_allow: str | None = None
    egress_ports: str | None = None
    egress_tunnels: int | None = Field(None, ge=1, le=200)
    egress_bytes: int | None = Field(None, ge=0)
    egress_idle_seconds: float | None = Field(None, gt=0)
    s3_bucket: str = "sessions"
    s3_proxy: str | None = None
    anthropic_model: str | None = None
    openai_model: str | None = None

    node: Path | None = None
    bwrap: Path | None = None
    weed: Path | None = None
    geesefs: Path | None = None
    geesefs_url: str | None = None

    anthropic_api_key: SecretStr | None = Field(None, validation_alias="ANTHROPIC_API_KEY")
    anthropic_base_url: str | None = Field(None, validation_alias="ANTHROPIC_BASE_URL")
    openai_api_key: SecretStr | None = Field(None, validation_alias="OPENAI_API_KEY")
    openai_base_url: str | None = Field(None, validation_alias="OPENAI_BASE_URL")

    ci: str | None = Field(None, validation_alias="CI")
    home: Path = Field(Path("/"), validation_alias="HOME")
    xdg_cache_home: Path | None = Field(None, validation_alias="XDG_CACHE_HOME")
    xdg_runtime_dir: Path | None = Field(None, validation_alias="XDG_RUNTIME_DIR")

    @model_validator(mode="after")
    def _workspace_has_its_binary(self) -> Self:
        if self.geesefs is not None and not os.access(self.geesefs, os.X_OK):
            raise ValueError(f"HOLDFAST_GEESEFS={self.geesefs} is not a program that can be run")
        return self

    @field_validator("egress_allow")
    @classmethod
    def _hosts(cls, value: str | None) -> str | None:
        for each in filter(None, (value or "").replace(" ", "").split(",")):
            pattern(each)
        return value

    @property
    def data(self) -> Path:
        return absolute_data_dir(self.data_dir)

    @property
    def cache_root(self) -> Path:
        if self.cache is not None:
            return (project_root() / self.cache.expanduser()).resolve()
        if os.geteuid() == 0:
            # boxes run under uids of their own, and /root is closed to them
            return Path("/var/cache/holdfast")
        return (self.xdg_cache_home or self.home / ".cache") / "holdfast"

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.api_host in ("0.0.0.0", "::") else self.api_host  # noqa: S104 - compared, not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.api_port}"

    @property
    def registries_only(self) -> bool:
        """True where nothing but package registries may be contacted."""
        return self.offline or (self.ci or "").lower() not in ("", "0", "false", "no")


def load_settings() -> Settings:
    """Read the environment and `.env`.

    Raises:
        Misconfigured: a variable has a value that cannot work.
    """
    try:
        return Settings(_env_file=env_file())
    except ValidationError as error:
        raise Misconfigured(
            "; ".join(_describe(detail["loc"], detail["msg"]) for detail in error.errors()),
            hint="correct it in the environment or in .env; .env.example explains every setting",
        ) from None


def inherited_environment(*, network: bool = False) -> dict[str, str]:
    """The part of the caller's environment that a child process gets."""
    names = _COMMON + (_NETWORK if network else ())
    return {name: os.environ[name] for name in names if name in os.environ}


def npm_environment() -> dict[str, str]:
    """What npm needs: the network's variables and npm's own configuration."""
    own = {name: os.environ[name] for name in os.environ if name.lower().startswith("npm_config_")}
    return inherited_environment(network=True) | own


def _describe(location: tuple[int | str, ...], message: str) -> str:
    name = str(location[0]) if location else ""
    if not name:
        return message.removeprefix("Value error, ")
    return f"{name if name.isupper() else 'HOLDFAST_' + name.upper()}: {message}"
