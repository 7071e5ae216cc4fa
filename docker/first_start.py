"""Makes the stack's secrets at its first start, each in a file that only its reader may open.

Runs as root in a container of its own, before everything else, with a volume per reader mounted
below /secrets. What is there stays: a second start changes nothing, unless a token was given. Keys
that .env gives are handed on, and taken back when it gives them no more. The files are named as the
settings that they are, so that the services read them by themselves. With the word `rotate` it only
replaces the api's token.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

SECRETS = Path("/secrets")
GIVEN = Path("/run/given")
# Keys of other people's services, and who uses them.
KEYS = {
    "gateway": ("anthropic_api_key", "openai_api_key"),
    "sidecar": ("e2b_api_key", "daytona_api_key", "modal_token_id", "modal_token_secret"),
}
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


def given(name: str) -> str:
    """What .env says; nothing where it says nothing."""
    path = GIVEN / name
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def hand_on_keys() -> None:
    for reader, names in KEYS.items():
        for name in names:
            if key := given(name):
                write(SECRETS / reader / name, key, HOLDFAST)
            else:
                (SECRETS / reader / name).unlink(missing_ok=True)


def make_secrets() -> None:
    api, sidecar, engine = (SECRETS / name for name in ("api", "sidecar", "engine"))
    gateway, gate = SECRETS / "gateway", SECRETS / "gate"
    postgres, seaweedfs = SECRETS / "postgres", SECRETS / "seaweedfs"

    token = given("api_token") or kept(api / "holdfast_api_token", secrets.token_urlsafe(32))
    write(api / "holdfast_api_token", token, HOLDFAST)

    between = kept(api / "holdfast_sidecar_secret", secrets.token_urlsafe(32))
    access = kept(api / "holdfast_s3_access_key", secrets.token_hex(10))
    secret = kept(api / "holdfast_s3_secret_key", secrets.token_hex(32))
    for reader in (api, sidecar):
        write(reader / "holdfast_sidecar_secret", between, HOLDFAST)
        write(reader / "holdfast_s3_access_key", access, HOLDFAST)
        write(reader / "holdfast_s3_secret_key", secret, HOLDFAST)
    write(seaweedfs / "s3.json", s3_identities(access, secret), HOLDFAST)
    # Somebody who may do nothing: a store that knows nobody at all is open to everybody.
    nobody = kept(gate / "s3.json", s3_nobody())
    write(gate / "s3.json", nobody, HOLDFAST)

    # what tokens for the gateway's port are made with, and checked
    sessions = kept(gateway / "holdfast_gateway_secret", secrets.token_urlsafe(32))
    for reader in (gateway, sidecar):
        write(reader / "holdfast_gateway_secret", sessions, HOLDFAST)

    password = kept(postgres / "password", secrets.token_hex(32))
    write(postgres / "password", password, ROOT)
    database = f"postgresql://{DATABASE_USER}:{password}@postgres:5432/{DATABASE_USER}"
    write(api / "holdfast_database_url", database, HOLDFAST)

    # no secret: the name of this stack among the engine's containers
    stack = kept(engine / "holdfast_docker_stack", secrets.token_hex(4))
    write(engine / "holdfast_docker_stack", stack, ROOT)
    write(sidecar / "holdfast_docker_stack", stack, HOLDFAST)


def rotate_token() -> None:
    """A new token for the api, which takes it with its next request."""
    if given("api_token"):
        sys.exit(
            "HOLDFAST_API_TOKEN says which token the stack has: change it in .env, then\n"
            "docker compose up -d --force-recreate init"
        )
    write(SECRETS / "api" / "holdfast_api_token", secrets.token_urlsafe(32), HOLDFAST)


def s3_identities(access: str, secret: str) -> str:
    return _identity("admin", access, secret, ("Admin", "Read", "Write", "List", "Tagging"))


def s3_nobody() -> str:
    return _identity("nobody", secrets.token_hex(10), secrets.token_hex(32), ())


def _identity(name: str, access: str, secret: str, actions: tuple[str, ...]) -> str:
    key = {"accessKey": access, "secretKey": secret}
    return json.dumps({"identities": [{"name": name, "credentials": [key], "actions": actions}]})


def main() -> None:
    if sys.argv[1:] == ["rotate"]:
        rotate_token()
        return
    for name, (owner, mode) in OWNED.items():
        path = Path(name)
        path.mkdir(exist_ok=True)
        os.chown(path, owner, HOLDFAST)
        path.chmod(mode)
    make_secrets()
    hand_on_keys()


if __name__ == "__main__":
    main()
