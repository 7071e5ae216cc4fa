"""The fence: before a session is mounted, nobody else can write to it any more.

An S3 mount (geesefs) is fenced at the store: its key is revoked, wherever it runs. A weed mount has
no key, so it is fenced by its end: every daemon of the session on this host is killed and its exit
proven, also ones of another data directory or without a record.
"""

from __future__ import annotations

from contracts.errors import MountFailed
from sidecar.boxhost import mounts as boxhost
from sidecar.boxhost.contract import MountHost
from sidecar.workspace.iam import SessionKey, SessionKeys


class Fence:
    def __init__(self, mounts: MountHost, keys: SessionKeys) -> None:
        self._mounts = mounts
        self._keys = keys

    async def close(self, session_id: str) -> None:
        """Shut out every mount of the session, by either engine.

        Raises: MountFailed, StoreUnavailable; then nothing may be mounted.
        """
        try:
            await self._mounts.fence(session_id)
        except boxhost.MountFailed as error:
            raise MountFailed(
                f"an earlier mount of the session cannot be ended: {error}"
            ) from error
        await self._keys.revoke(session_id)

    async def admit(self, session_id: str, *, inside: bool = False) -> SessionKey:
        """A key for whoever has the session next: this host's mount, or what is `inside` a sandbox,
        which this host knows nothing of. Raises: StoreUnavailable."""
        name = await self._mounts.name()
        return await self._keys.grant(session_id, f"{name}-inside" if inside else name)

    async def sweep(self) -> int:
        """Revoke what this host was given and no longer uses. Raises: StoreUnavailable."""
        mounted = await self._mounts.mounted()
        return await self._keys.sweep(await self._mounts.name(), mounted)
