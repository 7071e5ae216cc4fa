"""The directories and files of one stack."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stack.errors import DirectoryUnsafe, Misconfigured

if TYPE_CHECKING:
    from stack.settings import Settings

# Unix socket paths end at 107 bytes; ours add at most `/gateway/<uuid>/sock`.
MAX_RUN_DIR_BYTES = 107 - 50


@dataclass(frozen=True)
class DataFiles:
    """What tells of a running stack; `data` is what survives it."""

    data: Path

    @property
    def token(self) -> Path:
        return self.data / "token"

    @property
    def state(self) -> Path:
        return self.data / "state.json"


@dataclass(frozen=True)
class Layout(DataFiles):
    """`run` holds unix sockets, whose paths must be short."""

    run: Path

    @classmethod
    def of(cls, settings: Settings) -> Layout:
        return cls(settings.data, _run_dir(settings))

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def secrets(self) -> Path:
        return self.data / "secrets"

    @property
    def pids(self) -> Path:
        return self.data / "pids"

    @property
    def postgres(self) -> Path:
        return self.data / "postgres"

    @property
    def postgres_socket_dir(self) -> Path:
        return self.run / "postgres"

    @property
    def seaweedfs(self) -> Path:
        return self.data / "seaweedfs"

    @property
    def lock(self) -> Path:
        return self.data / "lock"

    @property
    def ports(self) -> Path:
        return self.data / "ports.json"

    @property
    def api(self) -> Path:
        """Where programs find the stack: {"url"}."""
        return self.data / "api.json"

    @property
    def store(self) -> Path:
        """Where programs find the store: endpoint, keys, bucket."""
        return self.data / "store.json"

    @property
    def control(self) -> Path:
        """Sockets of services, for this user only."""
        return self.run / "control"

    @property
    def gateway_control(self) -> Path:
        return self.control / "gateway.sock"

    @property
    def gateway_sessions(self) -> Path:
        return self.run / "gateway"

    @property
    def sidecar_socket(self) -> Path:
        return self.control / "sidecar.sock"

    def make(self) -> None:
        """Make every directory.

        Raises:
            DirectoryUnsafe: one of them is someone else's, or no directory.
            Misconfigured: the path of `run` is too long for unix sockets.
        """
        if len(bytes(self.run)) > MAX_RUN_DIR_BYTES:
            raise Misconfigured(
                f"{self.run} is too long for unix sockets",
                hint=f"set HOLDFAST_RUN_DIR to a path of at most {MAX_RUN_DIR_BYTES} bytes",
            )
        # root's boxes run under other uids and must get through to their own mounts
        through = 0o711 if os.geteuid() == 0 else 0o700
        _own(self.data, through)
        for private in (self.logs, self.secrets, self.pids, self.seaweedfs):
            _own(private, 0o700)
        _own(self.run, 0o711)
        for private in (self.control, self.postgres_socket_dir, self.gateway_sessions):
            _own(private, 0o700)

    def remove_sockets(self) -> None:
        """Empty `run` after a stack that stopped well; what is no socket stays."""
        for place, _, names in os.walk(self.run, topdown=False):
            for path in (Path(place) / name for name in names):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
            with suppress(OSError):  # something else is kept there
                Path(place).rmdir()


def _run_dir(settings: Settings) -> Path:
    if settings.run_dir is not None:
        return settings.run_dir.expanduser().absolute()
    tag = hashlib.sha256(bytes(settings.data)).hexdigest()[:8]
    user = os.geteuid()
    runtime = settings.xdg_runtime_dir
    # root's is closed to the boxes' uids
    if user != 0 and runtime is not None and runtime.is_dir():
        return runtime / f"holdfast-{tag}"
    return Path(f"/tmp/holdfast-{user}-{tag}")  # noqa: S108 - see _own


def _own(directory: Path, mode: int) -> None:
    """Make `directory`, or see that it is really ours: /tmp is everybody's."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise DirectoryUnsafe(
            f"{directory} cannot be made: {error.strerror}",
            hint="set HOLDFAST_DATA_DIR or HOLDFAST_RUN_DIR to a directory that you can write to",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise DirectoryUnsafe(
            f"{directory} is not a directory of user {os.geteuid()}",
            hint="remove it, or set HOLDFAST_DATA_DIR or HOLDFAST_RUN_DIR to another place",
        )
    if stat.S_IMODE(found.st_mode) != mode:
        directory.chmod(mode)
