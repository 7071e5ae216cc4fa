"""PostgreSQL on a unix socket that only its owner can open."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from stack.embedded.cluster_template import ClusterTemplate, template_key
from stack.embedded.layout import Layout
from stack.embedded.part import Part
from stack.embedded.processes import run_tool
from stack.errors import BinaryMissing

DATABASE = "holdfast"
INITDB_SECONDS = 100.0
NAME = "postgres"

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "60",
    # one machine, no replicas: less to write
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_timezone": "UTC",
    "timezone": "UTC",
}


_INITDB = (
    *("-U", "postgres", "--auth=trust", "--encoding=UTF8"),
    *("--locale-provider=builtin", "--locale=C.UTF-8", "--no-instructions"),
)
_CREATE = f"CREATE DATABASE {DATABASE};\n"


def database_url(layout: Layout) -> str:
    return f"postgresql://postgres@/{DATABASE}?host={layout.postgres_socket_dir}"


def postgres_part(layout: Layout, programs: Path, cache: Path, env: Mapping[str, str]) -> Part:
    """The server of `layout`, with `programs` from PostgreSQL's bin directory. A template for new
    clusters is kept in `cache`.

    Raises:
        BinaryMissing: `unshare` is needed and not there.
    """
    data = layout.postgres
    options = {**_SETTINGS, "unix_socket_directories": str(layout.postgres_socket_dir)}
    flags = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    cluster = _Cluster(data, programs, cache, env, as_nobody())
    return Part(
        name=NAME,
        argv=(str(programs / "postgres"), "-D", str(data), *flags),
        cwd=layout.data,
        env=env,
        wrapper=cluster.wrapper,
        prepare=cluster.prepare,
        is_ready=cluster.is_ready,
        # fast shutdown: SIGTERM would wait for clients to leave
        stop_signal=signal.SIGINT,
        stop_seconds=20.0,
    )


def as_nobody() -> tuple[str, ...]:
    """What lets PostgreSQL run for root, and for a uid without a name: it refuses both.

    To itself it is `nobody`; to the file system it stays who it is, so nothing has to be given
    to another user.

    Raises:
        BinaryMissing: it is needed, and there is no `unshare`.
    """
    if os.geteuid() != 0 and _has_a_name(os.geteuid()):
        return ()
    unshare = shutil.which("unshare")
    if unshare is None:
        raise BinaryMissing("unshare was not found", hint="install the package util-linux")
    return (unshare, "--user", "--map-user=65534", "--map-group=65534", "--")


def _has_a_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


class _Cluster:
    def __init__(
        self,
        data: Path,
        programs: Path,
        cache: Path,
        env: Mapping[str, str],
        wrapper: tuple[str, ...],
    ) -> None:
        self._data = data
        self._programs = programs
        self._cache = cache
        self._env = env
        self.wrapper = wrapper

    async def prepare(self) -> None:
        """Make the cluster and its database at the first start.

        Raises:
            PartFailed: PostgreSQL's own tools failed.
        """
        if self._data.is_dir():
            self._forget_dead_postmaster()
            return
        new = self._data.with_name("postgres.new")
        # left by a start that was killed half way
        await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
        template = await self._template()
        if await asyncio.to_thread(template.copy_to, new):
            await self._run("initdb", "--sync-only", "-D", str(new))
        else:
            await self._run("initdb", "-D", str(new), *_INITDB)
            create = _CREATE.encode()
            await self._run("postgres", "--single", "-D", str(new), "postgres", given=create)
            await asyncio.to_thread(template.keep, new)
        new.rename(self._data)

    async def _template(self) -> ClusterTemplate:
        server = self._programs / "postgres"
        version = await self._run("postgres", "--version")
        key = template_key((version, str(server.stat().st_size), *_INITDB, _CREATE))
        return ClusterTemplate(self._cache / "postgres" / key)

    async def is_ready(self, pid: int) -> bool:
        """PostgreSQL writes its own state into its lock file, as pg_ctl reads it."""
        lines = self._lock_file_lines()
        return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _forget_dead_postmaster(self) -> None:
        """Remove the lock file of a server that was killed.

        PostgreSQL removes it itself, unless its pid belongs to another process by now:
        then it refuses to start. We hold the stack's lock, and look at the process.
        """
        lines = self._lock_file_lines()
        if not lines:
            return
        try:
            theirs = Path(f"/proc/{lines[0].strip()}/cwd").resolve(strict=True)
        except OSError:
            theirs = None
        if theirs != self._data.resolve():
            self._lock_file.unlink(missing_ok=True)

    @property
    def _lock_file(self) -> Path:
        return self._data / "postmaster.pid"

    def _lock_file_lines(self) -> list[str]:
        try:
            return self._lock_file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []

    async def _run(self, program: str, *arguments: str, given: bytes | None = None) -> str:
        return await run_tool(
            program,
            *self.wrapper,
            str(self._programs / program),
            *arguments,
            env=self._env,
            cwd=self._data.parent,
            seconds=INITDB_SECONDS,
            given=given,
        )
