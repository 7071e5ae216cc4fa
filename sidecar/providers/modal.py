"""The Modal provider: a sandbox per session in one app of an account.

A sandbox is named after its key, and Modal lets one living sandbox of an app have a name: that is
what makes `create` idempotent. It has a fixed lifetime from its making and cannot be suspended.

The SDK runs in a thread of its own and keeps its connection for the client's life, so one client is
opened when it is first needed, from the account's tokens, and closed with the provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import grpclib.exceptions
import modal
from modal import exception as sdk
from modal.config import DEFAULT_SERVER_URL
from modal.stream_type import StreamType
from modal_proto.api_pb2 import CLIENT_TYPE_CLIENT

from contracts.errors import (
    FileMissing,
    InvalidSpec,
    NotRunning,
    RateLimited,
    SandboxConflict,
    SandboxError,
    SandboxGone,
    Unauthorized,
    Unreachable,
    Unsupported,
)
from sidecar.providers.base import Capabilities, Endpoint, SandboxInfo, SandboxSpec, Status
from sidecar.providers.cloud import (
    BOXD_PORT,
    START_BOXD,
    Cloud,
    CloudSandbox,
    Errors,
    Patience,
    connected,
    map_errors,
)
from sidecar.tasks import finish

LONGEST_LIFETIME = 24 * 3600  # Modal's own limit
# The first sandbox of an image from a registry waits until Modal has pulled it.
PATIENCE = Patience(call=60, create=600)
CLOSE_SECONDS = 10
STACK_TAG, KEY_TAG = "holdfast_stack", "holdfast_key"
CREATED_TAG = "holdfast_created"  # the SDK does not tell when a sandbox was made
# The main process. Not boxd: a sandbox ends with it, and boxd may have to be started again.
MAIN = ("sleep", "infinity")

# Subclasses before their bases. `NotFoundError` alone says nothing of a sandbox: the SDK also makes
# it of a connection that failed. Only a look-up by id may say that one is gone (`_find`).
ERRORS: Errors = (
    (sdk.AuthError, Unauthorized),
    (sdk.PermissionDeniedError, Unauthorized),
    (sdk.ResourceExhaustedError, RateLimited),
    (sdk.AlreadyExistsError, SandboxConflict),
    (sdk.ConflictError, NotRunning),
    (sdk.InvalidError, InvalidSpec),
    (sdk.ImageBuildError, InvalidSpec),
    (sdk.UnimplementedError, Unsupported),
    (sdk.VersionError, Unsupported),
    (sdk.RequestSizeError, Unsupported),
    (sdk.SandboxTimeoutError, SandboxGone),
    (sdk.SandboxTerminatedError, SandboxGone),
    (sdk.SandboxFilesystemNotFoundError, FileMissing),
    (sdk.SandboxFilesystemDirectoryNotEmptyError, Unreachable),
    (sdk.SandboxFilesystemIsADirectoryError, Unreachable),
    (sdk.SandboxFilesystemNotADirectoryError, Unreachable),
    (sdk.SandboxFilesystemPermissionError, Unreachable),
    (sdk.SandboxFilesystemFileTooLargeError, Unreachable),
    (sdk.SandboxFilesystemPathAlreadyExistsError, Unreachable),
    (sdk.SandboxFilesystemError, Unreachable),
    (sdk.ExecTimeoutError, Unreachable),
    (sdk.FunctionTimeoutError, Unreachable),
    (sdk.InteractiveTimeoutError, Unreachable),
    (sdk.MountUploadTimeoutError, Unreachable),
    (sdk.VolumeUploadTimeoutError, Unreachable),
    (sdk.OutputExpiredError, Unreachable),
    (sdk.TimeoutError, Unreachable),
    (sdk.NotFoundError, Unreachable),
    (sdk.ServiceError, Unreachable),
    (sdk.InternalError, Unreachable),
    (sdk.InternalFailure, Unreachable),
    (sdk.ConnectionError, Unreachable),
    (sdk.ClientClosed, Unreachable),
    (sdk.DataLossError, Unreachable),
    (sdk.ExecutionError, Unreachable),
    (sdk.LogsFetchError, Unreachable),
    (sdk.SnapshotCreationError, Unreachable),
    (sdk.SerializationError, Unreachable),
    (sdk.DeserializationError, Unreachable),
    (sdk.WorkspaceManagementError, Unreachable),
    (sdk.RemoteError, Unreachable),
    (sdk.Error, Unreachable),
    (sdk.ModuleNotMountable, Unreachable),
    (sdk.UserCodeException, Unreachable),
    (sdk.InputCancellation, Unreachable),
    # what the SDK lets through of its transport
    (grpclib.exceptions.StreamTerminatedError, Unreachable),
    (grpclib.exceptions.ProtocolError, Unreachable),
    (grpclib.exceptions.GRPCError, Unreachable),
)
# There it is the app or the image that is not found.
CREATE_ERRORS: Errors = ((sdk.NotFoundError, InvalidSpec), *ERRORS)


@dataclass(frozen=True)
class ModalAccount:
    """Whose sandboxes, of what, and for how long. `image` is one of a registry, or a Modal image's
    id (`im-…`). `lifetime` cannot be prolonged: a sandbox that reaches it dies in its turn."""

    token_id: str = field(repr=False)
    token_secret: str = field(repr=False)
    app: str
    image: str
    runtime: Literal["gvisor", "vm"] = "gvisor"
    server_url: str | None = None
    lifetime: float = LONGEST_LIFETIME


@dataclass(frozen=True)
class Place:
    """Where sandboxes are made."""

    client: modal.Client
    app: modal.App
    image: modal.Image


class ModalProvider:
    name = "modal"

    def __init__(
        self,
        cloud: Cloud,
        account: ModalAccount,
        resources: contextlib.AsyncExitStack,
        patience: Patience = PATIENCE,
    ) -> None:
        self._cloud = cloud
        self._patience = patience
        self._account = account
        self._resources = resources
        self._client: modal.Client | None = None
        self._place: Place | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        # Two boxds that are started at once take each other's token.
        self._starting: weakref.WeakValueDictionary[str, asyncio.Lock]
        self._starting = weakref.WeakValueDictionary()
        self.capabilities = Capabilities(
            # gVisor, Modal's default, has no /dev/fuse
            mount="in_box" if account.runtime == "vm" else "none",
            freeze=True,
            max_lifetime=account.lifetime,
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, cloud: Cloud, account: ModalAccount, patience: Patience = PATIENCE
    ) -> AsyncIterator[ModalProvider]:
        """Nothing is asked of Modal yet: what is wrong with the account, `trouble` says."""
        async with contextlib.AsyncExitStack() as resources:
            provider = cls(cloud, account, resources, patience)
            try:
                yield provider
            finally:
                provider._closed = True

    async def trouble(self) -> str:
        if not (self._account.token_id and self._account.token_secret):
            return "no token: set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        if not self._account.image:
            return "no image: `holdfast images build modal`, and set HOLDFAST_MODAL_IMAGE"
        try:
            async with self._asking("trouble"):
                client = await self._opened()
                await client.hello.aio()  # type: ignore[no-untyped-call]
        except Unauthorized:
            return "Modal refuses the token"
        except SandboxError as error:
            return f"Modal does not answer: {error.message}"
        return ""

    async def create(self, spec: SandboxSpec) -> CloudSandbox:
        tags = {**self._cloud.labels(spec), CREATED_TAG: str(int(time.time()))}
        async with self._asking("create", CREATE_ERRORS, self._patience.create):
            try:
                found = await self._made(self._name(spec.key), tags)
            except sdk.NotFoundError:
                self._place = None  # the app was stopped, or the image deleted: look anew
                raise
        return await self._connected(found, tags, "create")

    async def attach(self, sandbox_id: str) -> CloudSandbox:
        async with self._asking("attach"):
            found = await self._find(sandbox_id)
            if found is None:
                raise SandboxGone(f"the sandbox {sandbox_id} has ended", op="attach")
            tags = await found.get_tags.aio()
        if tags.get(STACK_TAG) != self._cloud.stack:
            raise Unreachable(f"{sandbox_id} is no sandbox of this stack", op="attach")
        return await self._connected(found, tags, "attach")

    async def status(self, sandbox_id: str) -> Status:
        try:
            async with self._asking("status"):
                found = await self._find(sandbox_id)
        except SandboxError:
            return Status.UNKNOWN
        return Status.GONE if found is None else Status.RUNNING

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        listed: list[tuple[str, dict[str, str]]] = []
        async with self._asking("list"):
            place = await self._at()
            wanted = self._cloud.wanted(labels)
            async for found in modal.Sandbox.list.aio(
                app_id=place.app.app_id, tags=wanted, client=place.client
            ):
                with contextlib.suppress(sdk.NotFoundError):  # ended since it was listed
                    listed.append((found.object_id, await found.get_tags.aio()))
        for sandbox_id, tags in listed:
            created = datetime.fromtimestamp(int(tags.get(CREATED_TAG, "0")), UTC).isoformat()
            yield SandboxInfo(sandbox_id, self._cloud.known(tags), Status.RUNNING, created)

    async def destroy(self, sandbox_id: str) -> bool:
        async with self._asking("destroy"):
            found = await self._find(sandbox_id)
            if found is None:
                return False
            with contextlib.suppress(sdk.SandboxTimeoutError):  # its lifetime was faster
                await found.terminate.aio(wait=True)
        return True

    async def keepalive(self, sandbox_id: str) -> None:
        """Nothing to do: Modal has a fixed lifetime, which nothing prolongs."""

    async def _made(self, name: str, tags: dict[str, str]) -> modal.Sandbox:
        """The living sandbox of this name, made if there is none: it may be there from an attempt
        whose answer was lost."""
        place = await self._at()
        for _ in range(2):
            with contextlib.suppress(sdk.AlreadyExistsError):
                return await modal.Sandbox.create.aio(
                    *MAIN,
                    app=place.app,
                    name=name,
                    tags=tags,
                    image=place.image,
                    timeout=int(self._account.lifetime),
                    runtime=self._account.runtime,
                    client=place.client,
                )
            with contextlib.suppress(sdk.NotFoundError):  # ended since then: its name is free
                return await modal.Sandbox.from_name.aio(
                    self._account.app, name, client=place.client
                )
        raise Unreachable(f"the sandbox {name} is there, and is not", op="create")

    async def _find(self, sandbox_id: str) -> modal.Sandbox | None:
        """The control plane's word: the sandbox if it lives, nothing if it has ended. The SDK does
        not mind a dead one: only its exit code tells (137: terminated, 124: its lifetime)."""
        client = await self._opened()
        try:
            found = await modal.Sandbox.from_id.aio(sandbox_id, client=client)
        except sdk.NotFoundError:
            return None
        return found if found.returncode is None else None

    async def _connected(
        self, found: modal.Sandbox, tags: Mapping[str, str], op: str
    ) -> CloudSandbox:
        key = tags[KEY_TAG]
        try:
            async with self._asking(op):
                # Not a tunnel, which is open to the whole internet. By cookie, as the agent in the
                # box has a use for the Authorization header.
                port = await found.create_connect_token.aio(port=BOXD_PORT)
            box = Endpoint(port.url.rstrip("/"), {"Cookie": f"_modal_connect_token={port.token}"})
            sandbox = CloudSandbox(
                *(found.object_id, self._cloud.known(tags), self._cloud, key, box, self),
                self._patience,
            )
            async with self._starting.setdefault(key, asyncio.Lock()):
                return await connected(
                    sandbox, lambda: self._start_boxd(found, key, op), self._patience
                )
        finally:
            # closes the connection that `exec` needs
            async with self._asking(op):
                await found.detach.aio()  # type: ignore[no-untyped-call]

    async def _start_boxd(self, found: modal.Sandbox, key: str, op: str) -> None:
        async with self._asking(op):
            process = await found.exec.aio(
                *START_BOXD, workdir="/", stdout=StreamType.DEVNULL, stderr=StreamType.DEVNULL
            )
            process.stdin.write(self._cloud.token(key))
            process.stdin.write_eof()
            await process.stdin.drain.aio()

    async def _opened(self) -> modal.Client:
        async with self._opening:
            if self._closed:
                # the SDK would connect once more, and leave that open
                raise Unreachable("the provider is closed", op="open")
            client = self._client
            if client is None:
                client = await self._resources.enter_async_context(opened(self._account))
                self._client = client
            return client

    async def _at(self) -> Place:
        client = await self._opened()
        if self._place is None:
            app = await modal.App.lookup.aio(
                self._account.app, client=client, create_if_missing=True
            )
            self._place = Place(client, app, image_of(self._account.image, client))
        return self._place

    @contextlib.asynccontextmanager
    async def _asking(
        self, op: str, errors: Errors = ERRORS, seconds: float | None = None
    ) -> AsyncIterator[None]:
        """The SDK's errors as ours, and an end to its patience: it waits for ever for some
        answers."""
        bound = seconds or self._patience.call
        with map_errors(errors, op):
            try:
                async with asyncio.timeout(bound):
                    yield
            except TimeoutError as error:
                raise Unreachable(f"Modal does not answer in {bound:g} s", op=op) from error

    def _name(self, key: str) -> str:
        """64 characters is what Modal takes."""
        digest = hashlib.sha256(f"{self._cloud.stack}/{key}".encode()).hexdigest()
        return f"holdfast-{digest[:40]}"


@contextlib.asynccontextmanager
async def opened(account: ModalAccount) -> AsyncIterator[modal.Client]:
    """A client of this account, whatever ~/.modal.toml says. Connects at once, for up to a minute.

    `Client.from_credentials` would take the server from the process's configuration, and stay open
    until its end.
    """
    client = modal.Client(
        account.server_url or DEFAULT_SERVER_URL,
        CLIENT_TYPE_CLIENT,
        (account.token_id, account.token_secret),
    )
    try:
        await client.__aenter__()  # type: ignore[no-untyped-call]
        yield client
    finally:
        leaving = client.__aexit__(None, None, None)  # type: ignore[no-untyped-call]
        # What is not closed by then ends with the process.
        with contextlib.suppress(TimeoutError):
            await finish(leaving, CLOSE_SECONDS)


def image_of(name: str, client: modal.Client) -> modal.Image:
    """Without the entrypoint of our image, which is for containers that boxd is the first process
    of: here the sandbox would end with it."""
    if name.startswith("im-"):
        image = modal.Image.from_id(name, client)
    else:
        image = modal.Image.from_registry(name)
    return image.entrypoint([])
