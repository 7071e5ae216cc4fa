"""What the engine proxy is told by its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.logs import LogFormat
from sidecar.engine_proxy.sandboxes import Policy


def _plain(root: Path) -> Path:
    if not root.is_absolute() or ".." in root.parts or len(root.parts) < 2:
        raise ValueError("must be an absolute path without `..`, and not /")
    return root


Root = Annotated[Path, AfterValidator(_plain)]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="HOLDFAST_", env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

    engine_socket: Path = Path("/var/run/docker.sock")
    engine_proxy_listen: Path
    engine_proxy_group: int | None = Field(None, ge=0)
    # `docker` below the run root, as this process sees it
    engine_proxy_boxes: Path
    # it becomes part of a path of the engine's API
    sandbox_image: str = Field(
        "holdfast-sandbox:latest", pattern=r"^[a-z0-9]+([._/:@-]+[A-Za-z0-9]+)*$"
    )
    docker_stack: str = Field(pattern=r"^[0-9a-f]{8}$")
    docker_mounts_root: Root
    docker_run_root: Root
    docker_memory: int = Field(4 * 1024**3, gt=0)
    docker_cpus: float = Field(2, gt=0)
    docker_pids: int = Field(1024, gt=0)
    log_level: str = "INFO"
    log_format: LogFormat = "text"

    def policy(self) -> Policy:
        return Policy(
            image=self.sandbox_image,
            stack=self.docker_stack,
            mounts_root=str(self.docker_mounts_root),
            run_root=str(self.docker_run_root),
            memory=self.docker_memory,
            nano_cpus=int(self.docker_cpus * 1_000_000_000),
            pids=self.docker_pids,
        )
