"""The sidecar's settings where no sidecar runs: the clouds' accounts, and where we are reached."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from sidecar.settings import Settings


class AccountSettings(Settings):
    """What only a sidecar needs is left out: nothing of it may be used."""

    sidecar_listen: str = ""
    sidecar_secret: SecretStr = SecretStr("")
    data_dir: Path = Path()
    run_dir: Path = Path()
    s3_endpoint: str = ""
    s3_access_key: SecretStr = SecretStr("")
    s3_secret_key: SecretStr = SecretStr("")
    gateway_control: Path = Path()
    boxhost: Path | None = Path()
