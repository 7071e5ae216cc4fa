"""The fence: before a session is mounted, nobody else can write to it any more.

An S3 mount (geesefs) is fenced at the store: its key is revoked, wherever it runs. A weed mount has
no key, so it is fenced by its end: every daemon of the session on this host is killed and its exit
proven, also ones of another data directory or without a record.
"""

from __future__ import annotations

from collections.abc import Sequence

from contracts.errors import MountFailed
from sidecar.boxhost import mounts as boxhost
from sidecar.boxhost.mounts import Mounts
from sidecar.workspace.iam import SessionKey, SessionKeys


class Fence:
    def __init__(self, mounts: Mounts, keys: SessionKeys, bucket: str) -> None:
        self._mounts = mounts
        self._keys = keys
        self._bucket = bucket

    async def close(self, session_id: str) -> None:
        """Shut out every mount of the session, by either engine.

        Raises: MountFailed, StoreUnavailable; then nothing may be mounted.
        """

        def serves(argv: Sequence[str]) -> bool:
            by_filer = f"-filer.path=/buckets/{self._bucket}/{session_id}"
            by_s3 = f"{self._bucket}:{session_id}"
            return by_filer in argv or ("-f" in argv and by_s3 in argv)

        try:
            await self._mounts.end_strays(serves)
        except boxhost.MountFailed as error:
            raise MountFailed(
                f"an earlier mount of the session cannot be ended: {error}"
            ) from error
        await self._keys.revoke(session_id)

    async def admit(self, session_id: str) -> SessionKey:
        """A key for the session's next mount. Raises: StoreUnavailable."""
        return await self._keys.grant(session_id, self._mounts.host())

    async def sweep(self) -> int:
        """Revoke what this host was given and no longer uses. Raises: StoreUnavailable."""
        mounted = {mount.session_id for mount in self._mounts.all() if mount.alive()}
        return await self._keys.sweep(self._mounts.host(), mounted)
