"""The E2B provider: a sandbox per session of a template that was built from our image.

What makes `create` idempotent: a box carries its key as metadata, and is asked for under an
idempotency key of the same. E2B answers such a key as it did the first time, also when that was a
refusal or when the box is gone since: so there is another one for every time that is known to have
made nothing that lives.

A box has an absolute lease. One that ends suspends the box with its memory, and whatever is asked
of the box afterwards wakes it: nothing is lost by it, and nothing is paid for meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import shlex
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import e2b
import httpx
import pyqwest
from connectrpc.errors import ConnectError
from e2b.api.client.errors import UnexpectedStatus
from e2b.connection_config import ApiParams
from e2b.volume.client.errors import UnexpectedStatus as VolumeUnexpectedStatus

from contracts.errors import (
    FileMissing,
    InvalidSpec,
    NoCapacity,
    RateLimited,
    SandboxError,
    SandboxGone,
    Unauthorized,
    Unreachable,
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

# To create takes longer than E2B itself is at a request.
PATIENCE = Patience(call=30, create=90)
RETRY_SECONDS = 0.5
RETRIES = 3  # of what E2B refuses for the moment, within a call's time
KEY = "holdfast_key"
# Traffic has to come with a token of the box. It is passed on into the box, so that it is no secret
# from who is in there: boxd has one of its own.
TRAFFIC_HEADER = "e2b-traffic-access-token"
ID_HEADER, PORT_HEADER = "E2b-Sandbox-Id", "E2b-Sandbox-Port"
STATES = {e2b.SandboxState.RUNNING: Status.RUNNING, e2b.SandboxState.PAUSED: Status.SUSPENDED}
# What E2B says about a request that it did not carry out: our mistake, not allowed, no template.
REFUSALS = (400, 403, 404)
OUTCOME_UNKNOWN = 422  # of the first request with this idempotency key; it is over by now

# Subclasses before their bases. `SandboxNotFoundException` alone says nothing of a box: changing
# the lease of a suspended one is answered so. Only a look-up or a connect may say that it is gone.
ERRORS: Errors = (
    (e2b.SandboxNotRunningException, Unreachable),
    (e2b.SandboxUnreachableException, Unreachable),
    (e2b.TimeoutException, Unreachable),
    (e2b.InvalidArgumentException, InvalidSpec),
    (e2b.NotEnoughSpaceException, Unreachable),
    (e2b.FileNotFoundException, FileMissing),
    (e2b.SandboxNotFoundException, Unreachable),
    (e2b.VolumeNotFoundException, Unreachable),
    (e2b.VolumePathNotFoundException, Unreachable),
    (e2b.NotFoundException, Unreachable),
    (e2b.GitUpstreamException, Unreachable),
    (e2b.TemplateException, InvalidSpec),
    (e2b.RateLimitException, Unreachable),
    (e2b.GuestUnresponsiveException, Unreachable),
    (e2b.CommandExitException, Unreachable),
    (e2b.SandboxException, Unreachable),
    (e2b.GitAuthException, Unreachable),
    (e2b.AuthenticationException, Unauthorized),
    (e2b.ServiceBusyException, Unreachable),
    (e2b.FileUploadException, InvalidSpec),
    (e2b.BuildException, InvalidSpec),
    (e2b.VolumeException, Unreachable),
    (e2b.SecretNotFoundException, Unreachable),
    (e2b.SecretException, Unreachable),
    (e2b.DockerfileSyntaxError, InvalidSpec),
    (UnexpectedStatus, Unreachable),
    (VolumeUnexpectedStatus, Unreachable),
    # what the SDK lets through of its transports
    (httpx.HTTPError, Unreachable),
    (ConnectError, Unreachable),
    (pyqwest.ReadError, Unreachable),
    (pyqwest.WriteError, Unreachable),
    (pyqwest.StreamError, Unreachable),
    # It raises bare ones too, and stumbles over an answer that is not E2B's but a proxy's.
    (Exception, Unreachable),
)
CREATE_ERRORS: Errors = (
    (e2b.RateLimitException, RateLimited),
    (e2b.ServiceBusyException, NoCapacity),
    *ERRORS,
)
# These have made nothing.
REFUSED = (InvalidSpec, NoCapacity, RateLimited, Unauthorized)


@dataclass(frozen=True)
class E2BAccount:
    """Whose sandboxes, and of what: `template` is a name, `name:tag` or an id. The URLs are of an
    E2B that is not the public one."""

    api_key: str = field(repr=False)
    template: str
    api_url: str | None = None
    sandbox_url: str | None = None

    def params(self, retries: int, patience: Patience = PATIENCE) -> ApiParams:
        """For every call of the SDK, which would else look into the environment."""
        return ApiParams(
            retries=retries,
            api_key=self.api_key,
            api_url=self.api_url,
            sandbox_url=self.sandbox_url,
            debug=False,
            request_timeout=patience.call,
        )


class E2BProvider:
    name = "e2b"
    # No `max_lifetime`: E2B lets a box run for a day at most, and then suspends it.
    capabilities = Capabilities(mount="in_box", freeze=True, suspend=True)

    def __init__(self, cloud: Cloud, account: E2BAccount, patience: Patience = PATIENCE) -> None:
        self._cloud = cloud
        self._account = account
        self._patience = patience
        self._params = account.params(RETRIES, patience)
        # the same idempotency key would get the same refusal
        self._once = account.params(0, patience)
        self._lifetime = int(cloud.lifetime)
        self._spent: dict[str, int] = {}  # idempotency keys of a box's key that made nothing
        # Two boxds that are started at once take each other's token.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, cloud: Cloud, account: E2BAccount, patience: Patience = PATIENCE
    ) -> AsyncIterator[E2BProvider]:
        """Nothing is asked of E2B yet: what is wrong with the account, `trouble` says."""
        yield cls(cloud, account, patience)

    async def trouble(self) -> str:
        if not self._account.api_key:
            return "no key: set E2B_API_KEY"
        if not self._account.template:
            return "no template: set HOLDFAST_E2B_TEMPLATE"
        try:
            async with self._asking("trouble"):
                found = await e2b.AsyncTemplate.exists(self._account.template, **self._params)
        except Unauthorized:
            return "E2B refuses the key"
        except SandboxError as error:
            return f"E2B does not answer: {error.message}"
        missing = f"there is no template {self._account.template}: `holdfast images build e2b`"
        return "" if found else missing

    async def create(self, spec: SandboxSpec) -> CloudSandbox:
        box = await self._made(spec)
        return await self._opened(box, self._cloud.labels(spec), "create")

    async def attach(self, sandbox_id: str) -> CloudSandbox:
        box = await self._connect(sandbox_id, "attach")
        found = await self._find(sandbox_id, "attach")
        if found is None:
            raise SandboxGone(f"the sandbox {sandbox_id} is gone", op="attach")
        return await self._opened(box, found.metadata, "attach")

    async def status(self, sandbox_id: str) -> Status:
        try:
            found = await self._find(sandbox_id, "status")
        except SandboxError:
            return Status.UNKNOWN
        return Status.GONE if found is None else STATES.get(found.state, Status.UNKNOWN)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for found in await self._listed(labels, "list"):
            yield SandboxInfo(
                found.sandbox_id,
                self._cloud.known(found.metadata),
                STATES.get(found.state, Status.UNKNOWN),
                found.started_at.isoformat(),
            )

    async def destroy(self, sandbox_id: str) -> bool:
        async with self._asking("destroy"):
            return await e2b.AsyncSandbox.kill(sandbox_id, **self._params)

    async def keepalive(self, sandbox_id: str) -> None:
        """The lease starts anew. A suspended box has none: it is for `attach` to wake it."""
        async with self._asking("keepalive"):
            try:
                await e2b.AsyncSandbox.set_timeout(sandbox_id, self._lifetime, **self._params)
            except e2b.SandboxNotFoundException as error:
                if await self._find(sandbox_id, "keepalive") is None:
                    message = f"the sandbox {sandbox_id} is gone"
                    raise SandboxGone(message, op="keepalive") from error
                raise

    async def _made(self, spec: SandboxSpec) -> e2b.AsyncSandbox:
        """The living box of this key, made if there is none.

        Raises: what `create` does.
        """
        deadline = time.monotonic() + self._patience.create
        while True:
            unclear: SandboxError | None = None
            try:
                if box := await self._first(spec) or await self._new(spec):
                    return box
            except (Unreachable, SandboxGone) as error:
                # An answer that got lost, one that E2B is still at, a box that has just ended: look
                # again, and ask for the same again. That makes no second box.
                unclear = error
            if time.monotonic() > deadline:
                message = unclear.message if unclear else "no box of ours is left alone"
                raise Unreachable(message, op="create") from unclear
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - a pause

    async def _first(self, spec: SandboxSpec) -> e2b.AsyncSandbox | None:
        """The oldest living box of this key."""
        living = await self._listed({"key": spec.key}, "create")
        if not living:
            return None
        oldest = min(living, key=lambda found: (found.started_at, found.sandbox_id))
        return await self._connect(oldest.sandbox_id, "create")

    async def _new(self, spec: SandboxSpec) -> e2b.AsyncSandbox | None:
        """A new box; None if it turns out not to be the one to keep.

        Raises: those of REFUSED; Unreachable.
        """
        tried = self._spent.get(spec.key, 0)
        try:
            made = await self._ask_for(spec, tried)
        except REFUSED:
            self._spent[spec.key] = tried + 1
            raise
        living = {found.sandbox_id for found in await self._listed({"key": spec.key}, "create")}
        if living - {made.sandbox_id}:
            # Only where E2B does not heed the idempotency key. Who made the other one may have seen
            # that alone, and kept it: so whoever sees two gives up the own one, which nobody knows.
            await self.destroy(made.sandbox_id)
            return None
        if not living and not await self._find(made.sandbox_id, "create"):
            self._spent[spec.key] = tried + 1  # an old answer, of a box that has ended
            return None
        self._spent.pop(spec.key, None)
        return made

    async def _ask_for(self, spec: SandboxSpec, tried: int) -> e2b.AsyncSandbox:
        wanted = f"{self._cloud.stack}/{spec.key}/{tried}"
        async with self._asking("create", CREATE_ERRORS):
            try:
                return await e2b.AsyncSandbox.create(
                    self._account.template,
                    timeout=self._lifetime,
                    metadata=self._cloud.labels(spec),
                    network={"allow_public_traffic": False},
                    lifecycle={"on_timeout": "pause", "auto_resume": True},
                    # E2B takes letters and digits
                    idempotency_key=hashlib.sha256(wanted.encode()).hexdigest(),
                    **self._once,
                )
            except e2b.SandboxException as error:
                if error.status_code in REFUSALS:
                    raise InvalidSpec(f"E2B says: {error}", op="create") from error
                if error.status_code == OUTCOME_UNKNOWN:
                    self._spent[spec.key] = tried + 1
                raise

    async def _connect(self, sandbox_id: str, op: str) -> e2b.AsyncSandbox:
        """Awake, and with a lease of at least a lifetime. Raises: SandboxGone, Unreachable."""
        async with self._asking(op):
            try:
                with contextlib.suppress(e2b.GuestUnresponsiveException):
                    return await e2b.AsyncSandbox.connect(
                        sandbox_id, timeout=self._lifetime, **self._params
                    )
                # Its memory is of no use: the disk is.
                return await e2b.AsyncSandbox.connect(
                    sandbox_id, timeout=self._lifetime, on_resume="reboot", **self._params
                )
            except e2b.SandboxNotFoundException as error:
                raise SandboxGone(f"the sandbox {sandbox_id} is gone", op=op) from error

    async def _find(self, sandbox_id: str, op: str) -> e2b.SandboxInfo | None:
        """The control plane's word; None for a box that is gone. Raises: Unreachable."""
        async with self._asking(op):
            try:
                return await e2b.AsyncSandbox.get_info(sandbox_id, **self._params)
            except e2b.SandboxNotFoundException:
                return None

    async def _listed(self, labels: Mapping[str, str], op: str) -> Sequence[e2b.SandboxInfo]:
        wanted = self._cloud.wanted(labels)
        found: list[e2b.SandboxInfo] = []
        pages = e2b.AsyncSandbox.list(query=e2b.SandboxQuery(metadata=wanted), **self._params)
        while pages.has_next:
            async with self._asking(op):
                found += await pages.next_items()
        return [each for each in found if wanted.items() <= each.metadata.items()]

    async def _opened(
        self, box: e2b.AsyncSandbox, metadata: Mapping[str, str], op: str
    ) -> CloudSandbox:
        key, labels = metadata.get(KEY, ""), self._cloud.known(metadata)
        if not self._cloud.wanted({}).items() <= metadata.items() or "session" not in labels:
            raise Unreachable(f"the sandbox {box.sandbox_id} is not one of this stack", op=op)
        sandbox = CloudSandbox(
            box.sandbox_id, labels, self._cloud, key, self._port(box), self, self._patience
        )
        async with self._locks.setdefault(box.sandbox_id, asyncio.Lock()):
            return await connected(sandbox, lambda: self._start_boxd(box, key, op), self._patience)

    def _port(self, box: e2b.AsyncSandbox) -> Endpoint:
        """boxd's. An E2B elsewhere, which has one URL for all boxes, goes by the headers."""
        headers = {ID_HEADER: box.sandbox_id, PORT_HEADER: str(BOXD_PORT)}
        if box.traffic_access_token:
            headers[TRAFFIC_HEADER] = box.traffic_access_token
        return Endpoint(self._account.sandbox_url or f"https://{box.get_host(BOXD_PORT)}", headers)

    async def _start_boxd(self, box: e2b.AsyncSandbox, key: str, op: str) -> None:
        """As root: boxd becomes the agent's user itself, when it has its token."""
        async with self._asking(op):
            started = await box.commands.run(
                shlex.join(START_BOXD), background=True, user="root", cwd="/", stdin=True, timeout=0
            )
            try:
                await started.send_stdin(self._cloud.token(key))
                await started.close_stdin()
            finally:
                await started.disconnect()  # it goes on

    @contextlib.asynccontextmanager
    async def _asking(self, op: str, errors: Errors = ERRORS) -> AsyncIterator[None]:
        """The SDK's errors as ours, and an end to its patience: its own deadlines do nothing for
        RPCs on Python 3.11."""
        with map_errors(errors, op):
            async with asyncio.timeout(self._patience.call):
                yield
