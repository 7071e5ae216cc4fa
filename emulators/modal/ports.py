"""Ways to a port inside a sandbox: tunnels, which anybody may use who knows their address, and HTTP
with a connect token."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from grpclib import GRPCError
from modal_proto import api_pb2
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from emulators.boxes import BoxError
from emulators.modal.images import Images
from emulators.modal.sandboxes import Sandbox
from emulators.modal.work import Work
from emulators.port_proxy import NoAnswer, forward

TOKEN = "_modal_connect_token"  # noqa: S105 - the name of a cookie, and of a query parameter
VERIFIED = b"x-verified-user-data"
BUILDS = "/_modal/builds"
CHUNK = 64 * 1024
SELF_SIGNED = ("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=modal-emulator")
SMALL_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


class Grant(NamedTuple):
    """What a connect token opens."""

    sandbox: Sandbox
    port: int
    user_metadata: str


class Ports:
    """Is an ASGI app, too: the proxy behind connect tokens. `url` is where it is served."""

    def __init__(self, host: str, work: Work, images: Images) -> None:
        self._host = host
        self._work = work
        self._images = images
        self._grants: dict[str, Grant] = {}
        self._tunnels: dict[tuple[str, int], api_pb2.TunnelData] = {}
        self._tls: ssl.SSLContext | None = None
        self.url = ""

    def connect_token(self, sandbox: Sandbox, port: int, user_metadata: str) -> str:
        token = secrets.token_urlsafe(24)
        self._grants[token] = Grant(sandbox, port, user_metadata)
        return token

    async def tunnel(self, sandbox: Sandbox, spec: api_pb2.PortSpec) -> api_pb2.TunnelData:
        """The address of a tunnel, which is open from now on. Raises: OSError."""
        known = self._tunnels.get((sandbox.id, spec.port))
        if known is None:
            self._tls = self._tls or await asyncio.to_thread(_tls)
            known = api_pb2.TunnelData(host=self._host, container_port=spec.port)
            known.port = await self._listen(sandbox, spec.port, self._tls)
            if spec.unencrypted:
                known.unencrypted_host = self._host
                known.unencrypted_port = await self._listen(sandbox, spec.port, None)
            self._tunnels[sandbox.id, spec.port] = known
        return known

    async def _listen(self, sandbox: Sandbox, port: int, tls: ssl.SSLContext | None) -> int:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _carry(sandbox, port, reader, writer)

        server = await asyncio.start_server(carry, self._host, 0, ssl=tls)
        self._work.begin(_until_ended(server, sandbox))
        number: int = server.sockets[0].getsockname()[1]
        return number

    def sandbox_of(self, scope: Scope) -> str | None:
        grant = self._grant(scope)
        return None if grant is None else grant.sandbox.id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == BUILDS:
            await JSONResponse(self._images.builds)(scope, receive, send)
            return
        grant = self._grant(scope)
        if grant is None:
            await _refusal(401, "a connect token is missing or wrong")(scope, receive, send)
            return
        try:
            await self._forward(grant, scope, receive, send)
        except GRPCError as error:
            await _refusal(404, str(error.message))(scope, receive, send)
        except (OSError, BoxError, NoAnswer) as error:
            message = f"nobody answers at port {grant.port}: {error}"
            await _refusal(502, message)(scope, receive, send)

    async def _forward(self, grant: Grant, scope: Scope, receive: Receive, send: Send) -> None:
        box = await grant.sandbox.box()
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        kept = urlencode([(name, value) for name, value in query if name != TOKEN])
        target: bytes = scope["raw_path"] + (b"?" + kept.encode() if kept else b"")
        dropped = {VERIFIED, b"cookie"}
        if _bearer(Headers(scope=scope)) in self._grants:
            dropped.add(b"authorization")
        added = [(VERIFIED, grant.user_metadata.encode())] if grant.user_metadata else []
        cookies = _cookies(Headers(scope=scope)).items()
        if others := [f"{name}={value}" for name, value in cookies if name != TOKEN]:
            added.append((b"cookie", "; ".join(others).encode("latin-1")))
        await forward(
            scope,
            receive,
            send,
            lambda: box.connect(grant.port),
            target=target,
            dropped=dropped,
            added=added,
        )

    def _grant(self, scope: Scope) -> Grant | None:
        """By whichever of the three ways a token that is known was sent."""
        headers = Headers(scope=scope)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        for token in (_bearer(headers), query.get(TOKEN, ""), _cookies(headers).get(TOKEN, "")):
            if token in self._grants:
                return self._grants[token]
        return None


def _bearer(headers: Headers) -> str:
    return headers.get("authorization", "").removeprefix("Bearer ")


def _cookies(headers: Headers) -> dict[str, str]:
    pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in pairs if name}


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def _until_ended(server: asyncio.Server, sandbox: Sandbox) -> None:
    async with server:
        await sandbox.ended.wait()


async def _carry(
    sandbox: Sandbox, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        far_reader, far_writer = await (await sandbox.box()).connect(port)
    except (GRPCError, OSError, BoxError):
        writer.close()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, far_writer))
            group.create_task(_pump(far_reader, writer))
    finally:
        far_writer.close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()  # TLS has no half of a connection


def _tls() -> ssl.SSLContext:
    """With a certificate that nobody trusts. Raises: OSError, CalledProcessError."""
    with tempfile.TemporaryDirectory() as place:
        key, certificate = Path(place) / "key", Path(place) / "certificate"
        subprocess.run(
            [*SELF_SIGNED, *SMALL_KEY, "-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
            timeout=30,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    return context
