"""Makes the stack's secrets at its first start, each in a file that only its reader may open.

Runs as root in a container of its own, before everything else, with a volume per reader mounted
below /secrets. What is there stays: a second start changes nothing, unless a token was given.
The files are named as the settings that they are, so that the services read them by themselves.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

SECRETS = Path("/secrets")
GIVEN_TOKEN = Path("/run/given/api_token")
HOLDFAST, ROOT = 1000, 0
DATABASE_USER = "holdfast"
# Directories of volumes: who writes there, and what the group of all services may.
OWNED = {
    "/volumes/run": (HOLDFAST, 0o711),
    "/volumes/run/control": (HOLDFAST, 0o700),
    "/volumes/run/docker": (ROOT, 0o711),
    "/volumes/run/gateway": (HOLDFAST, 0o711),
    "/volumes/engine": (ROOT, 0o750),
    "/volumes/boxhost": (ROOT, 0o750),
    "/volumes/sidecar": (HOLDFAST, 0o700),
    "/volumes/seaweedfs": (HOLDFAST, 0o700),
}


def kept(path: Path, fresh: str) -> str:
    """What the file says, or what it says from now on."""
    try:
        return path.read_text(encoding="utf-8").strip() or fresh
    except FileNotFoundError:
        return fresh


def write(path: Path, text: str, uid: int) -> None:
    """Whole or not at all, and never readable by another."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(handle)
    os.chown(new, uid, uid)
    new.rename(path)


def make_secrets() -> None:
    api, sidecar, engine = (SECRETS / name for name in ("api", "sidecar", "engine"))
    postgres, seaweedfs = SECRETS / "postgres", SECRETS / "seaweedfs"

    given = GIVEN_TOKEN.read_text(encoding="utf-8").strip() if GIVEN_TOKEN.exists() else ""
    token = given or kept(api / "holdfast_api_token", secrets.token_urlsafe(32))
    write(api / "holdfast_api_token", token, HOLDFAST)

    between = kept(api / "holdfast_sidecar_secret", secrets.token_urlsafe(32))
    access = kept(api / "holdfast_s3_access_key", secrets.token_hex(10))
    secret = kept(api / "holdfast_s3_secret_key", secrets.token_hex(32))
    for reader in (api, sidecar):
        write(reader / "holdfast_sidecar_secret", between, HOLDFAST)
        write(reader / "holdfast_s3_access_key", access, HOLDFAST)
        write(reader / "holdfast_s3_secret_key", secret, HOLDFAST)
    write(seaweedfs / "s3.json", s3_identities(access, secret), HOLDFAST)

    password = kept(postgres / "password", secrets.token_hex(32))
    write(postgres / "password", password, ROOT)
    database = f"postgresql://{DATABASE_USER}:{password}@postgres:5432/{DATABASE_USER}"
    write(api / "holdfast_database_url", database, HOLDFAST)

    # no secret: the name of this stack among the engine's containers
    stack = kept(engine / "holdfast_docker_stack", secrets.token_hex(4))
    write(engine / "holdfast_docker_stack", stack, ROOT)
    write(sidecar / "holdfast_docker_stack", stack, HOLDFAST)


def s3_identities(access: str, secret: str) -> str:
    admin = {
        "name": "admin",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [admin]})


def main() -> None:
    for name, (owner, mode) in OWNED.items():
        path = Path(name)
        path.mkdir(exist_ok=True)
        os.chown(path, owner, HOLDFAST)
        path.chmod(mode)
    make_secrets()


if __name__ == "__main__":
    main()
