"""A sandbox for the doctor: made, asked whether it reaches us, and ended."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from contracts.errors import HoldfastError, SandboxError
from sidecar.providers.base import Command, InBoxSandbox, Provider, SandboxSpec, Status
from sidecar.runs.gateway import Gateway
from sidecar.settings import Settings
from sidecar.tasks import finish
from sidecar.workspace.geesefs import GeesefsInBox
from sidecar.workspace.iam import REGION, SessionKey, SessionKeys
from sidecar.workspace.store import Store, StoreAddress

Told = tuple[str, Literal["ok", "warn", "fail"], str, str]

OK, FORBIDDEN = 200, 403
END_SECONDS = 120
EXEC_SECONDS = 60
URL_SECONDS = 300
CONTENT = "written by the doctor"
CONSOLE = "try again, and look into the cloud's console for what became of the sandbox"
# What it asks for comes by stdin: a command line would show tokens and signatures.
ASK = """
import json, sys, urllib.error, urllib.request
ask = json.load(sys.stdin)
data = ask["data"].encode() if ask["data"] else None
request = urllib.request.Request(ask["url"], data, ask["headers"], method=ask["method"])
try:
    with urllib.request.urlopen(request, timeout=30) as answer:
        told = {"status": answer.status, "body": answer.read(2000).decode("utf-8", "replace")}
except urllib.error.HTTPError as error:
    told = {"status": error.code, "body": error.read(2000).decode("utf-8", "replace")}
except OSError as error:
    told = {"status": 0, "body": str(error)}
print(json.dumps(told))
"""


async def try_box(
    settings: Settings, provider: Provider, oldest: float
) -> AsyncGenerator[Told, None]:
    """Steps of a sandbox's life, which is over at the end of them, whatever happens. What a doctor
    left behind more than `oldest` seconds ago is ended first."""
    session_id = str(uuid4())
    spec = SandboxSpec(
        key=f"doctor-{secrets.token_hex(4)}",
        session_id=session_id,
        labels={"session": session_id, "epoch": "0"},
        gateway_socket=Path(),
    )
    began = time.monotonic()
    try:
        await _end_left_ones(provider, oldest)
        sandbox = cast("InBoxSandbox", await provider.create(spec))
    except SandboxError as error:
        yield "a sandbox", "fail", f"none was made: {error.message}", error.hint or CONSOLE
        return
    try:
        took = time.monotonic() - began
        yield "a sandbox", "ok", f"{sandbox.id}, with boxd in it, after {took:.1f} s", ""
        try:
            yield await _to_gateway(settings, sandbox, session_id)
            async for told in _to_store(settings, sandbox, session_id):
                yield told
        except HoldfastError as error:
            yield "from it", "fail", error.message, error.hint or CONSOLE
    finally:
        await finish(_end(provider, sandbox.id), END_SECONDS)
    status = await provider.status(sandbox.id)
    if status is Status.GONE:
        yield "its end", "ok", "it is gone", ""
    else:
        yield "its end", "fail", f"it is {status.value} after it was ended", CONSOLE


async def _end_left_ones(provider: Provider, oldest: float) -> None:
    async for info in provider.list({}):
        made = datetime.fromisoformat(info.created_at) if info.created_at else datetime.now(UTC)
        if (datetime.now(UTC) - made).total_seconds() > oldest:
            await provider.destroy(info.sandbox_id)


async def _end(provider: Provider, sandbox_id: str) -> None:
    await provider.destroy(sandbox_id)


async def _to_gateway(settings: Settings, sandbox: InBoxSandbox, session_id: str) -> Told:
    """A session is opened for it, as for a turn."""
    gateway = Gateway(settings.gateway_control)
    async with contextlib.aclosing(gateway):
        await gateway.open(session_id)
        try:
            bearer = {"Authorization": f"Bearer {sandbox.gateway_token}"}
            told = await _ask(sandbox, f"{sandbox.gateway_url.rstrip('/')}/", headers=bearer)
        finally:
            await finish(gateway.close_session(session_id), END_SECONDS)
    check = "from it: gateway"
    if told["status"] == OK:
        return check, "ok", "its session's token is taken", ""
    advice = "does the cloud let sandboxes out to this address? Daytona's low tiers do not"
    return check, "fail", _answer(told), advice


async def _to_store(
    settings: Settings, sandbox: InBoxSandbox, session_id: str
) -> AsyncGenerator[Told, None]:
    """A file of its session goes there and back, by addresses that are signed for it here: so that
    the signature holds although a tunnel lies in between."""
    check = "from it: store"
    if not settings.store_url or settings.workspace == "checkpoint":
        yield check, "ok", "not needed: workspaces are copied (checkpoint)", ""
        return
    address = StoreAddress(
        endpoint=settings.s3_endpoint,
        access_key=settings.s3_access_key.get_secret_value(),
        secret_key=settings.s3_secret_key.get_secret_value(),
        bucket=settings.s3_bucket,
    )
    path = f"{session_id}/doctor.txt"
    url = f"{settings.store_url.rstrip('/')}/{settings.s3_bucket}/{path}"
    async with SessionKeys.open(address) as keys, Store.open(address) as store:
        try:
            key = await keys.grant(session_id, "doctor")
            put = await _ask(sandbox, signed("PUT", url, key), method="PUT", data=CONTENT)
            got = await _ask(sandbox, signed("GET", url, key))
        finally:
            await finish(_forget(keys, store, session_id, path), END_SECONDS)
    if put["status"] == OK and (got["status"], got["body"]) == (OK, CONTENT):
        yield check, "ok", "a file went there and came back", ""
        yield await _engine(settings, sandbox)
        return
    told = put if put["status"] != OK else got
    if "SignatureDoesNotMatch" in told["body"]:
        advice = (
            "the tunnel changes what was signed: the gate must be started with HOLDFAST_STORE_URL"
            " as sandboxes use it. Else leave that unset: workspaces are copied then"
        )
    else:
        advice = "does the cloud let sandboxes out to this address? Daytona's low tiers do not"
    yield check, "fail", _answer(told), advice


async def _forget(keys: SessionKeys, store: Store, session_id: str, path: str) -> None:
    await keys.revoke(session_id)
    await store.delete([path])


async def _engine(settings: Settings, sandbox: InBoxSandbox) -> Told:
    reason = await GeesefsInBox(settings.store_url, settings.s3_bucket).unsuited(sandbox)
    if reason:
        return "workspace", "ok", f"will be copied (checkpoint): {reason}", ""
    return "workspace", "ok", "will be mounted inside, by geesefs", ""


async def _ask(
    sandbox: InBoxSandbox,
    url: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    data: str = "",
) -> dict[str, Any]:
    asked = {"url": url, "method": method, "headers": headers or {}, "data": data}
    command = Command(
        ["python3", "-I", "-c", ASK],
        cwd="/",
        stdin=json.dumps(asked).encode(),
        timeout=EXEC_SECONDS,
    )
    done = await sandbox.exec(command)
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        return {"status": 0, "body": said or f"exit code {done.exit_code}"}
    return told


def _answer(told: dict[str, Any]) -> str:
    said = " ".join(told["body"].split())[:300]
    return f"no answer: {said}" if told["status"] == 0 else f"{told['status']}: {said}"


def signed(method: str, url: str, key: SessionKey) -> str:
    """An address that opens one object for some minutes, without the key."""
    request = AWSRequest(method, url)
    credentials = Credentials(key.access_key, key.secret_key)
    S3SigV4QueryAuth(credentials, "s3", REGION, expires=URL_SECONDS).add_auth(request)
    return str(request.url)
