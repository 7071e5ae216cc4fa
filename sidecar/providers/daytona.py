"""The Daytona provider: a sandbox per session, made of a snapshot of our image.

A sandbox is named after its key, and an organization has one living sandbox of a name: that is what
makes `create` idempotent. One that nobody uses for long is stopped, with its disk kept: `attach`
starts it, and boxd in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import shlex
import warnings
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    ListSandboxesQuery,
    SessionExecuteRequest,
)
from daytona.common import errors as sdk

from contracts.errors import (
    InvalidSpec,
    NoCapacity,
    QuotaExceeded,
    RateLimited,
    SandboxConflict,
    SandboxError,
    SandboxGone,
    Unauthorized,
    Unreachable,
)
from sidecar.providers.base import Capabilities, Endpoint, SandboxInfo, SandboxSpec, Status
from sidecar.providers.cloud import (
    BOXD_COMMAND,
    BOXD_PORT,
    TOKEN_FILE,
    Cloud,
    CloudSandbox,
    Errors,
    Patience,
    connected,
    map_errors,
)
from sidecar.tasks import finish

# To create or start takes a while for one that comes out of the archive.
PATIENCE = Patience(call=30, create=180)
CLOSE_SECONDS = 10
POLL_SECONDS = 0.5
# A sandbox that its sidecar has left for good is stopped after the lifetime, and a day later it is
# gone. A stopped one costs its disk only; what is worth keeping of it is in the store.
DELETE_MINUTES = 24 * 60
USER = "agent"
KEY_LABEL = "holdfast_key"
TOKEN_HEADER = "X-Daytona-Preview-Token"  # noqa: S105 - a header's name
# The file is there with its mode before the token is in it: an upload knows no mode, and keeps that
# of a file that is there. `-C`: never through a link planted in /tmp.
PUT_FILE = f"umask 077; rm -f {TOKEN_FILE}; set -C; : >{TOKEN_FILE}"

# The control plane's. `DaytonaNotFoundError` is its word that a sandbox is gone, from a look-up by
# id. Subclasses come before their bases, by the sorting.
_MEANINGS: Mapping[type[SandboxError], tuple[type[BaseException], ...]] = {
    SandboxGone: (sdk.DaytonaNotFoundError,),
    Unauthorized: (sdk.DaytonaAuthenticationError, sdk.DaytonaForbiddenError),
    RateLimited: (sdk.DaytonaRateLimitError,),
    NoCapacity: (sdk.DaytonaQueueTimeoutError,),
    SandboxConflict: (sdk.DaytonaConflictError,),
    InvalidSpec: (sdk.DaytonaBadRequestError, sdk.DaytonaUnprocessableEntityError),
    Unreachable: (
        sdk.DaytonaError,
        sdk.DaytonaTimeoutError,
        sdk.DaytonaConnectionError,
        sdk.DaytonaConnectionTimeoutError,
        sdk.DaytonaInternalServerError,
        sdk.DaytonaBadGatewayError,
        sdk.DaytonaServiceUnavailableError,
        # The box ended while it was waited for: the next look-up tells.
        sdk.DaytonaSpotEvictedError,
        sdk.DaytonaGoneError,
        # Words of the daemon in a box, whatever they look like, are none of the control plane.
        sdk.DaytonaA11yUnavailableError,
        sdk.DaytonaCommandAlreadyCompletedError,
        sdk.DaytonaFileAccessDeniedError,
        sdk.DaytonaFileNotFoundError,
        sdk.DaytonaFileReadFailedError,
        sdk.DaytonaGitAuthFailedError,
        sdk.DaytonaGitBranchExistsError,
        sdk.DaytonaGitBranchNotFoundError,
        sdk.DaytonaGitDirtyWorktreeError,
        sdk.DaytonaGitMergeConflictError,
        sdk.DaytonaGitPushRejectedError,
        sdk.DaytonaGitRemoteRejectedError,
        sdk.DaytonaGitRepoNotFoundError,
        sdk.DaytonaGitTransportFailedError,
        sdk.DaytonaInvalidFilePathError,
        sdk.DaytonaLspServerNotInitializedError,
        sdk.DaytonaProcessExecutionTimeoutError,
        sdk.DaytonaProcessNotFoundError,
        sdk.DaytonaRecordingFfmpegNotFoundError,
        sdk.DaytonaRecordingStillActiveError,
        sdk.DaytonaSessionEndedError,
    ),
}
ERRORS: Errors = sorted(
    ((vendor, ours) for ours, vendors in _MEANINGS.items() for vendor in vendors),
    key=lambda row: -len(row[0].__mro__),
)
# There it is the snapshot or the region that is not found.
CREATE_ERRORS: Errors = ((sdk.DaytonaNotFoundError, InvalidSpec), *ERRORS)
# The toolbox answers 401 for a sandbox that is deleted, and 404 for much else.
TOOLBOX_ERRORS: Errors = ((sdk.DaytonaError, Unreachable),)

STATES: Mapping[str, Status] = {
    "started": Status.RUNNING,
    "stopped": Status.STOPPED,
    "archiving": Status.STOPPED,
    "archived": Status.STOPPED,
    # nothing runs in it; `attach` repairs it, or ends it
    "error": Status.STOPPED,
    "build_failed": Status.STOPPED,
    "paused": Status.SUSPENDED,
    "destroyed": Status.GONE,
    # All others are on the way to one of these.
}
BROKEN = ("error", "build_failed")


@dataclass(frozen=True)
class DaytonaAccount:
    """Whose sandboxes, and of which snapshot. None: Daytona's own cloud, the account's region."""

    api_key: str = field(repr=False)
    snapshot: str
    api_url: str | None = None
    target: str | None = None


class DaytonaProvider:
    name = "daytona"
    # a stopped sandbox keeps its disk and no process: nothing is suspended
    capabilities = Capabilities(mount="in_box", freeze=True)

    def __init__(
        self,
        cloud: Cloud,
        account: DaytonaAccount,
        client: AsyncDaytona | None,
        patience: Patience = PATIENCE,
    ) -> None:
        self._cloud = cloud
        self._patience = patience
        self._account = account
        self._client_or_none = client
        # Two boxds that are started at once take each other's token.
        self._starting: weakref.WeakValueDictionary[str, asyncio.Lock]
        self._starting = weakref.WeakValueDictionary()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, cloud: Cloud, account: DaytonaAccount, patience: Patience = PATIENCE
    ) -> AsyncIterator[DaytonaProvider]:
        """Without a key nothing is asked of Daytona."""
        if not account.api_key:
            yield cls(cloud, account, None, patience)
            return
        async with opened(account) as client:
            yield cls(cloud, account, client, patience)

    async def trouble(self) -> str:
        if not self._account.api_key:
            return "no key: set DAYTONA_API_KEY"
        name = self._account.snapshot
        if not name:
            return "no snapshot: set HOLDFAST_DAYTONA_SNAPSHOT"
        try:
            async with self._asking("trouble"):
                snapshot = await self._client.snapshot.get(name)
        except SandboxGone:
            return f"there is no snapshot {name}: `holdfast images build daytona` makes it"
        except Unauthorized:
            return "Daytona refuses the key"
        except SandboxError as error:
            return f"Daytona does not answer: {error.message}"
        state = snapshot.state.value
        return "" if state == "active" else f"the snapshot {name} is {state}"

    async def create(self, spec: SandboxSpec) -> CloudSandbox:
        box = await self._made(f"holdfast-{self._cloud.stack}-{spec.key}", spec)
        return await self._connected(box, "create")

    async def attach(self, sandbox_id: str) -> CloudSandbox:
        async with self._asking("attach"):
            box = await self._client.get(sandbox_id)
        if not self._cloud.wanted({}).items() <= box.labels.items():
            raise SandboxConflict(f"the sandbox {sandbox_id} is of another stack", op="attach")
        await self._run(box, "attach")
        return await self._connected(box, "attach")

    async def status(self, sandbox_id: str) -> Status:
        try:
            async with self._asking("status"):
                box = await self._client.get(sandbox_id)
        except SandboxGone:
            return Status.GONE
        except SandboxError:
            return Status.UNKNOWN
        return _status(box)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        query = ListSandboxesQuery(labels=self._cloud.wanted(labels))
        async with self._asking("list"):
            found = [box async for box in self._client.list(query)]
        for box in found:
            known = self._cloud.known(box.labels)
            yield SandboxInfo(box.id, known, _status(box), box.created_at or "")

    async def destroy(self, sandbox_id: str) -> bool:
        try:
            async with self._asking("destroy"):
                box = await self._client.get(sandbox_id)
        except SandboxGone:
            return False
        await self._end(box, "destroy")
        return True

    async def keepalive(self, sandbox_id: str) -> None:
        """Begin its idle time anew. Nothing else does: a harness that works in silence sends
        nothing to the toolbox, and what comes by the preview does not count."""
        async with self._asking("keepalive"):
            box = await self._client.get(sandbox_id)
            if _status(box) is not Status.RUNNING:
                raise Unreachable(f"the sandbox is {_word(box)}", op="keepalive")
            await box.refresh_activity()

    @property
    def _client(self) -> AsyncDaytona:
        if self._client_or_none is None:
            raise Unauthorized("there is no key for Daytona", op="open")
        return self._client_or_none

    async def _made(self, name: str, spec: SandboxSpec) -> AsyncSandbox:
        """The one living sandbox of this name, running. An answer that got lost on the way is one
        to a sandbox that is there: asking again finds it."""
        lost: SandboxError | None = None
        for _ in range(2):
            try:
                return await self._ask_for(name, spec)
            except SandboxConflict:
                try:
                    async with self._asking("create"):
                        box = await self._client.get(name)
                    await self._run(box, "create")
                except SandboxGone as error:  # since then: its name is free
                    lost = error
                else:
                    return box
            except Unreachable as error:
                lost = error
        raise Unreachable(f"the sandbox {name} cannot be had: {lost}", op="create") from lost

    async def _ask_for(self, name: str, spec: SandboxSpec) -> AsyncSandbox:
        params = CreateSandboxFromSnapshotParams(
            name=name,
            snapshot=self._account.snapshot,
            os_user=USER,
            labels=self._cloud.labels(spec),
            public=False,
            # Not 0, which is for ever: a sandbox that `keepalive` is not called for any more is
            # nobody's. Not a time to live either, which would end it for good, files and all, where
            # this can be undone.
            auto_stop_interval=math.ceil(self._cloud.lifetime / 60),
            auto_delete_interval=DELETE_MINUTES,
        )
        async with self._asking("create", CREATE_ERRORS, self._patience.create):
            try:
                return await self._client.create(params, timeout=self._patience.create)
            except sdk.DaytonaBadRequestError as error:
                if "limit exceeded" in str(error):
                    raise QuotaExceeded(str(error), op="create") from error
                raise

    async def _run(self, box: AsyncSandbox, op: str) -> None:
        """Have it run, from whatever state it is in. Raises: SandboxGone, Unreachable."""
        async with self._asking(op, seconds=self._patience.create):
            while (state := _status(box)) is not Status.RUNNING:
                if state is Status.GONE:
                    raise SandboxGone(f"the sandbox {box.id} is {_word(box)}", op=op)
                if box.desired_state == "destroyed":
                    raise Unreachable(f"the sandbox {box.id} is being destroyed", op=op)
                if _word(box) in BROKEN:
                    await self._repair(box, op)
                elif state is not Status.UNKNOWN:
                    # a conflict: somebody else is starting or ending it
                    with contextlib.suppress(sdk.DaytonaConflictError):
                        await box.start(timeout=self._patience.create)
                if _status(box) is not Status.RUNNING:
                    await asyncio.sleep(POLL_SECONDS)
                    await box.refresh_data()

    async def _repair(self, box: AsyncSandbox, op: str) -> None:
        """Raises: SandboxGone, of one that is broken for good: then it has been deleted."""
        if box.recoverable:
            await box.recover(timeout=self._patience.create)
            return
        await self._end(box, op)
        raise SandboxGone(f"the sandbox {box.id} was broken: {box.error_reason}", op=op)

    async def _end(self, box: AsyncSandbox, op: str) -> None:
        """Delete it, and wait until it is gone. Raises: Unreachable."""
        async with self._asking(op, seconds=self._patience.destroy):
            while True:
                try:
                    return await box.delete(timeout=self._patience.destroy, wait=True)
                except sdk.DaytonaNotFoundError:
                    return None
                except sdk.DaytonaConflictError:  # it is just being started, stopped, or deleted
                    await asyncio.sleep(POLL_SECONDS)

    async def _connected(self, box: AsyncSandbox, op: str) -> CloudSandbox:
        async with self._asking(op):
            # Asked for every time: the token is another one after each start.
            link = await box.get_preview_link(BOXD_PORT)
        endpoint = Endpoint(link.url.rstrip("/"), {TOKEN_HEADER: link.token})
        key = box.labels.get(KEY_LABEL, "")
        known = self._cloud.known(box.labels)
        sandbox = CloudSandbox(box.id, known, self._cloud, key, endpoint, self, self._patience)
        async with self._starting.setdefault(key, asyncio.Lock()):
            return await connected(sandbox, lambda: self._start_boxd(box, key, op), self._patience)

    @contextlib.asynccontextmanager
    async def _asking(
        self, op: str, errors: Errors = ERRORS, seconds: float | None = None
    ) -> AsyncIterator[None]:
        """The SDK's errors as ours, and an end to its patience: most of its calls have none."""
        bound = seconds or self._patience.call
        with map_errors(errors, op):
            try:
                async with asyncio.timeout(bound):
                    yield
            except TimeoutError as error:
                raise Unreachable(f"Daytona does not answer in {bound:g} s", op=op) from error

    async def _start_boxd(self, box: AsyncSandbox, key: str, op: str) -> None:
        session = f"boxd-{secrets.token_hex(4)}"  # one that is there would be a conflict
        command = SessionExecuteRequest(command=shlex.join(BOXD_COMMAND), run_async=True)
        async with self._asking(op, TOOLBOX_ERRORS):
            made = await box.process.exec(PUT_FILE, cwd="/")
            if made.exit_code != 0:
                raise Unreachable(f"no file for boxd's token: {made.result}", op=op)
            await box.fs.upload_file(self._cloud.token(key).encode(), TOKEN_FILE)
            await box.process.create_session(session)
            await box.process.execute_session_command(session, command)


@contextlib.asynccontextmanager
async def opened(account: DaytonaAccount) -> AsyncIterator[AsyncDaytona]:
    """A client of this account, which asks for nothing by itself.

    It polls for what it waits for. Left to itself it would listen to Daytona's notifications, by a
    WebSocket that it opens again, more and more often, whenever it is lost, and after `close` too.
    """
    config = DaytonaConfig(
        api_key=account.api_key,
        api_url=account.api_url,
        target=account.target,
        use_deprecated_polling=True,
    )
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        client = AsyncDaytona(config)
    try:
        yield client
    finally:
        # What is not closed by then ends with the process.
        with contextlib.suppress(TimeoutError):
            await finish(client.close(), CLOSE_SECONDS)  # type: ignore[no-untyped-call]


def _status(box: AsyncSandbox) -> Status:
    """UNKNOWN, where a change is under way: what comes of it is not known yet."""
    if _word(box) == "started" and box.desired_state not in (None, "started"):
        return Status.UNKNOWN
    return STATES.get(_word(box), Status.UNKNOWN)


def _word(box: AsyncSandbox) -> str:
    return box.state.value if box.state else "unknown"
