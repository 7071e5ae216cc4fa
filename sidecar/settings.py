"""The sidecar's settings, from the environment, read once in `__main__`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.logs import LogFormat
from sidecar.workspace.choice import EngineName

MAY_BE_EMPTY = (
    *("boxhost", "geesefs", "anthropic_model", "openai_model", "gateway_secret"),
    *("e2b_api_key", "e2b_api_url", "e2b_sandbox_url"),
    *("daytona_api_key", "daytona_api_url", "daytona_target"),
    *("modal_token_id", "modal_token_secret", "modal_server_url"),
)
OF_A_HOST = ("filer", "harness_dir", "node", "bwrap", "weed")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    sidecar_listen: str
    sidecar_secret: SecretStr
    data_dir: Path
    run_dir: Path
    s3_endpoint: str
    s3_access_key: SecretStr
    s3_secret_key: SecretStr
    s3_bucket: str = "sessions"
    s3_state_bucket: str = "state"
    # Who holds the boxes and mounts, when that is not the sidecar itself.
    boxhost: Path | None = None
    # What a host of boxes and mounts needs; a box-host has its own.
    filer: str = ""
    harness_dir: Path = Path()
    node: Path = Path()
    bwrap: Path = Path()
    weed: Path = Path()
    geesefs: Path | None = None
    workspace: EngineName = "auto"
    checkpoint_seconds: float = Field(15, gt=0)
    warm_seconds: float = 600
    warm_sandboxes: int = 8
    gateway_control: Path
    docker_socket: Path = Path("/var/run/docker.sock")
    # A name for this stack among the engine's containers; by default one of the data directory's.
    docker_stack: str | None = None
    sandbox_image: str = "holdfast-sandbox:latest"
    # The directories of mounts and sockets as the engine sees them, if not as the sidecar does.
    docker_mounts_root: Path | None = None
    docker_run_root: Path | None = None
    # Whether that socket is an engine proxy's (sidecar/engine_proxy).
    docker_proxied: bool = False
    docker_memory: int = 4 << 30
    docker_cpus: float = 2
    docker_pids: int = 1024
    # The store and the gateway as sandboxes in a cloud reach them.
    store_url: str = ""
    gateway_url: str = ""
    gateway_secret: SecretStr | None = None
    cloud_lifetime: float = Field(3600, ge=60)
    # The vendors' own names, so that a key which is set already is found.
    e2b_api_key: SecretStr | None = Field(None, validation_alias="E2B_API_KEY")
    e2b_api_url: str | None = Field(None, validation_alias="E2B_API_URL")
    e2b_sandbox_url: str | None = Field(None, validation_alias="E2B_SANDBOX_URL")
    e2b_template: str = "holdfast-sandbox"
    daytona_api_key: SecretStr | None = Field(None, validation_alias="DAYTONA_API_KEY")
    daytona_api_url: str | None = Field(None, validation_alias="DAYTONA_API_URL")
    daytona_target: str | None = Field(None, validation_alias="DAYTONA_TARGET")
    daytona_snapshot: str = "holdfast-sandbox"
    modal_token_id: SecretStr | None = Field(None, validation_alias="MODAL_TOKEN_ID")
    modal_token_secret: SecretStr | None = Field(None, validation_alias="MODAL_TOKEN_SECRET")
    modal_server_url: str | None = Field(None, validation_alias="MODAL_SERVER_URL")
    modal_app: str = "holdfast"
    modal_image: str = ""
    modal_runtime: Literal["gvisor", "vm"] = "gvisor"
    # What one turn's harness may say: a flood is slowed to the first, the others end its turn.
    events_per_second: float = Field(200, gt=0)
    turn_events: int = Field(200_000, ge=1)
    turn_bytes: int = Field(512 << 20, ge=1 << 20)
    turn_seconds: float = Field(86_400, gt=0)
    # A larger event is cut; the api takes no line of more than 64 MiB.
    event_bytes: int = Field(32 << 20, ge=1 << 16, le=60 << 20)
    # What a session may keep in its workspace; 0: any number.
    session_bytes: int = Field(10 << 30, ge=0)
    session_files: int = Field(200_000, ge=0)
    default_harness: str = "claude"
    default_provider: str = "local"
    anthropic_model: str | None = None
    openai_model: str | None = None
    log_level: str = "info"
    log_format: LogFormat = "text"

    @field_validator(*MAY_BE_EMPTY, mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @model_validator(mode="after")
    def _has_a_host(self) -> Self:
        unset = [name for name in OF_A_HOST if name not in self.model_fields_set]
        if self.boxhost is None and unset:
            names = ", ".join(f"HOLDFAST_{name.upper()}" for name in unset)
            raise ValueError(f"set HOLDFAST_BOXHOST, or all of: {names}")
        return self
