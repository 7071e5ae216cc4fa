"""Secrets of one stack: made at its first start, kept in private files, passed by environment."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from stack.embedded.files import read_json, write_json, write_private
from stack.embedded.layout import Layout
from stack.settings import Settings

_BYTES = 32


@dataclass(frozen=True)
class Credentials:
    api_token: SecretStr
    sidecar_secret: SecretStr
    gateway_secret: SecretStr
    s3_access_key: SecretStr
    s3_secret_key: SecretStr


def load_credentials(layout: Layout, settings: Settings) -> Credentials:
    """Read the secrets, making those that are not there yet."""
    token = _secret(layout.token, settings.api_token)
    access, secret = _s3_key(layout)
    sidecar, gateway = (_secret(layout.secrets / name, None) for name in ("sidecar", "gateway"))
    return Credentials(token, sidecar, gateway, access, secret)


def kept_token(layout: Layout) -> SecretStr | None:
    """The stack's own token as it is now; None when there is none yet."""
    found = _found(layout.token)
    return SecretStr(found) if found else None


def rotate_token(layout: Layout) -> SecretStr:
    """Replace the stack's own token; a running api takes the new one with its next request."""
    fresh = SecretStr(secrets.token_urlsafe(_BYTES))
    write_private(layout.token, fresh.get_secret_value() + "\n")
    return fresh


def write_s3_identities(path: Path, credentials: Credentials) -> None:
    """The configuration that gives SeaweedFS its one administrator."""
    key = {
        "accessKey": credentials.s3_access_key.get_secret_value(),
        "secretKey": credentials.s3_secret_key.get_secret_value(),
    }
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    admin = {"name": "admin", "credentials": [key], "actions": actions}
    write_json(path, {"identities": [admin]})


def write_s3_nobody(path: Path) -> None:
    """Somebody who may do nothing: an S3 server that knows nobody at all is open to everybody."""
    key = {"accessKey": secrets.token_hex(10), "secretKey": secrets.token_hex(_BYTES)}
    write_json(path, {"identities": [{"name": "nobody", "credentials": [key], "actions": []}]})


def _secret(path: Path, given: SecretStr | None) -> SecretStr:
    """`given`, written to `path` for other programs; else what is there; else a new one."""
    if given is not None:
        write_private(path, given.get_secret_value() + "\n")
        return given
    found = _found(path) or secrets.token_urlsafe(_BYTES)
    # written again even when found: its mode may have been changed
    write_private(path, found + "\n")
    return SecretStr(found)


def _found(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _s3_key(layout: Layout) -> tuple[SecretStr, SecretStr]:
    path = layout.secrets / "s3.json"
    found = read_json(path)
    if not isinstance(found, dict) or not {"access_key", "secret_key"} <= found.keys():
        found = {"access_key": secrets.token_hex(10), "secret_key": secrets.token_hex(_BYTES)}
    write_json(path, found)
    return SecretStr(found["access_key"]), SecretStr(found["secret_key"])
