"""What the clouds' providers have in common: a box of our image with boxd in it, reached by HTTP.

The SDK of a cloud makes, finds and ends boxes, starts boxd in them and says how a port is reached.
All the rest goes through boxd, so that it is the same everywhere (docs/adr/0016).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.errors import SandboxError, Unreachable, Unsupported
from contracts.session_tokens import session_token
from sidecar.providers.base import Endpoint, SandboxSpec
from sidecar.providers.boxd import NoAnswer
from sidecar.providers.boxd_answers import Refused
from sidecar.providers.boxd_http import ByHttp
from sidecar.providers.boxd_sandbox import EXEC_GRACE_SECONDS, BoxdSandbox, Control

AGENT_PORT = 2468
BOXD_PORT = 2469
TOKEN_FILE = "/tmp/.holdfast-boxd-token"  # noqa: S105,S108 - boxd reads it at its start and removes it
BOXD_COMMAND = (
    *("python3", "-I", "-S", "/opt/holdfast/boxd"),
    *("--port", str(BOXD_PORT), "--token-file", TOKEN_FILE),
)
# boxd's token comes by stdin, into a file of root's own: the SDKs' files know no mode, and follow a
# link planted in /tmp. Nobody waits for a token that does not come. And nothing is taken from
# /usr/local, which E2B lets everybody write to.
PUT_TOKEN = (
    "PATH=/usr/bin:/bin; export PATH; umask 077;"  # noqa: S105 - a script
    ' rm -f "$1"; set -C; timeout 60 cat >"$1" || exit 1; shift; exec "$@"'
)
START_BOXD = ("/bin/sh", "-c", PUT_TOKEN, "sh", TOKEN_FILE, *BOXD_COMMAND)
LABELS = ("stack", "key", "session", "epoch")
# boxd is up within a few dozen milliseconds of its start; a slow machine is not asked too often.
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.005, 0.25

Errors = Sequence[tuple[type[BaseException], type[SandboxError]]]


@dataclass(frozen=True)
class Patience:
    """How long a cloud and its boxes are waited for, in seconds."""

    call: float  # for one answer of the control plane
    create: float
    destroy: float = 120
    boxd_start: float = 60
    boxd_answer: float = 5
    exec_grace: float = EXEC_GRACE_SECONDS


@dataclass(frozen=True)
class Cloud:
    """What every cloud's provider needs of this stack. `stack` is its name among the boxes of an
    account, `gateway_url` the model gateway as boxes reach it, `lifetime` the seconds for which a
    box is kept that nobody asks for."""

    stack: str
    gateway_url: str
    secret: bytes = field(repr=False)
    gateway_secret: bytes = field(repr=False)
    lifetime: float

    def token(self, key: str) -> str:
        """boxd's own, in the box with this key. Made anew rather than kept: a sidecar that is
        started again must find it."""
        return hmac.new(self.secret, f"boxd {key}".encode(), hashlib.sha256).hexdigest()

    def labels(self, spec: SandboxSpec) -> dict[str, str]:
        """As a cloud keeps them."""
        given = {"stack": self.stack, "key": spec.key, **spec.labels}
        return {f"holdfast_{name}": given[name] for name in LABELS if name in given}

    def wanted(self, labels: Mapping[str, str]) -> dict[str, str]:
        """What a cloud is asked for, to list this stack's boxes with these labels."""
        return {
            f"holdfast_{name}": value for name, value in {"stack": self.stack, **labels}.items()
        }

    def known(self, labels: Mapping[str, str]) -> dict[str, str]:
        """As we know them."""
        names = ("session", "epoch")
        return {n: labels[f"holdfast_{n}"] for n in names if f"holdfast_{n}" in labels}


class CloudSandbox(BoxdSandbox):
    """One box. `box` is how its boxd is reached, `key` what it was made for."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        cloud: Cloud,
        key: str,
        box: Endpoint,
        control: Control,
        patience: Patience,
    ) -> None:
        self._link = ByHttp(box, cloud.token(key))
        self._patience = patience
        super().__init__(sandbox_id, labels, self._link, control, patience.exec_grace)
        self.gateway_url = cloud.gateway_url
        self.gateway_token = session_token(cloud.gateway_secret, labels["session"])

    def endpoint(self, port: int) -> Endpoint:
        if port != AGENT_PORT:
            raise Unsupported(f"port {port} is not carried out of a cloud's box", op="endpoint")
        return self._link.agent()

    async def answers(self) -> bool:
        """Whether boxd is there."""
        try:
            await self._link.call("mounted", bound=self._patience.boxd_answer)
        except NoAnswer:
            return False
        except Refused as refused:
            raise Unreachable(f"boxd in {self.id}: {refused}", op="attach") from refused
        return True


async def connected(
    sandbox: CloudSandbox, start: Callable[[], Awaitable[None]], patience: Patience
) -> CloudSandbox:
    """Wait until boxd answers; where it does not, `start` puts its token there and starts it.

    Raises: Unreachable, and what `start` raises.
    """
    if await sandbox.answers():
        return sandbox
    await start()
    deadline, pause = time.monotonic() + patience.boxd_start, FIRST_POLL_SECONDS
    while not await sandbox.answers():
        if time.monotonic() > deadline:
            raise Unreachable(
                f"nothing answers in the box {sandbox.id}",
                op="attach",
                hint="Was its image built from sandbox-image/? `holdfast images build` does.",
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_POLL_SECONDS)
    return sandbox


@contextlib.contextmanager
def map_errors(table: Errors, op: str) -> Iterator[None]:
    """A vendor's errors as ours, by the first row that fits; what fits none is `Unreachable`, as
    nothing is known of the box then."""
    try:
        yield
    except SandboxError:
        raise
    except tuple(vendor for vendor, _ in table) as error:
        ours = next(ours for vendor, ours in table if isinstance(error, vendor))
        raise ours(f"{type(error).__name__}: {error}", op=op) from error
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"{type(error).__name__}: {error}", op=op) from error
