"""geesefs: FUSE over S3. Works wherever S3 can be reached; only fsync is durable, which is what the
barrier does to everything that changed."""

from __future__ import annotations

from sidecar.boxhost.contract import Files, MountHost
from sidecar.boxhost.daemons import geesefs_flags
from sidecar.providers.base import WORKSPACE, Command, InBoxSandbox, Provider
from sidecar.workspace.engine import Engine, WorkspaceLimits
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKey, SessionKeys
from sidecar.workspace.in_box import Brought, Closing
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store

GEESEFS = Engine(
    name="geesefs",
    sync_root=True,
    by_key=True,
    forgets_metadata=True,  # a listing has none: it must fetch each file's
    mtime_grain_ns=1_000_000_000,
)


def with_geesefs(
    provider: Provider,
    mounts: MountHost,
    store: Store,
    manifests: Manifests,
    keys: SessionKeys,
    why: str = "",
    limits: WorkspaceLimits | None = None,
) -> HostMounted:
    return HostMounted(provider, GEESEFS, mounts, store, manifests, keys, why, limits)


# In every sandbox whose image has it.
BINARY = "/opt/holdfast/geesefs"
KEY_FILE = "/home/agent/.holdfast-store-key"
COMMAND_SECONDS = 60


class GeesefsInBox:
    """A Bringing: mounted inside the sandbox, where the provider can see no mount of ours.

    Whatever runs there can read the key. It opens this session's prefix only, and no longer than
    the sandbox has the session.
    """

    engine = GEESEFS
    sync_seconds = None

    def __init__(self, endpoint: str, bucket: str, binary: str = BINARY) -> None:
        """`endpoint` is the store as a sandbox reaches it; empty where it cannot."""
        self._endpoint = endpoint
        self._bucket = bucket
        self._binary = binary

    async def unsuited(self, sandbox: InBoxSandbox) -> str:
        if not self._endpoint:
            return "the store has no address that a sandbox could reach (HOLDFAST_STORE_URL)"
        device = Command(["test", "-c", "/dev/fuse"], cwd="/", timeout=COMMAND_SECONDS)
        if (await sandbox.exec(device)).exit_code != 0:
            return "the sandbox has no FUSE"
        version = Command([self._binary, "--version"], cwd="/", timeout=COMMAND_SECONDS)
        if (await sandbox.exec(version)).exit_code != 0:
            return "the sandbox's image has no geesefs"
        return ""

    async def bring(
        self,
        sandbox: InBoxSandbox,
        files: Files,
        session_id: str,
        key: SessionKey,
        closing: Closing,
        *,
        new: bool,
    ) -> Brought:
        await sandbox.write(
            KEY_FILE,
            f"[default]\naws_access_key_id = {key.access_key}\n"
            f"aws_secret_access_key = {key.secret_key}\n".encode(),
        )
        argv = [self._binary, *geesefs_flags(self._endpoint), "--shared-config", KEY_FILE]
        argv += [f"{self._bucket}:{session_id}", WORKSPACE]
        await sandbox.mount(argv, {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"})
        return Brought(carrier=None, fresh=True)

    async def brought(self, sandbox: InBoxSandbox, session_id: str) -> None:
        """Nothing is kept of it."""

    async def is_there(self, sandbox: InBoxSandbox) -> bool:
        """Raises: Unreachable."""
        return await sandbox.mounted()
