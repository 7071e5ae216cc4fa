"""What our mounts cost beside the same engine mounted by hand.

    uv run python -m bench.fidelity [--engines weed,geesefs] [--rounds 3] [--files 2000] [--json]

The same command runs in a directory that Holdfast mounted and in one that was mounted by hand with
the flags of the engine's own documentation and the store's own key: untar of small files, and an
`npm ci` from a cache on disk. They take turns. Each ends with all of it fsynced. Then both mounts
are killed and mounted again: ours with modes, times, links and directories put back, with every
file forgotten (cold) and with nothing to do (again); the plain one with all of them lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import tarfile
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.barrier import BUCKET, SYNC, engine, make_buckets
from sidecar.boxhost import processes
from sidecar.boxhost.mounts import Mounts
from sidecar.workspace import restore
from sidecar.workspace.host_mounted import HostMounted, MountedWorkspace
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.support.services import SeaweedFS, seaweedfs, short_directory

GOAL = 1.30
SECONDS = 600
PACKAGES = {"express": "4.21.2", "chalk": "4.1.2", "typescript": "5.6.3"}
OLD = 1_000_000_000  # so that no object's own time is the file's by chance

Seconds = defaultdict[str, list[float]]


class Work:
    """What is done on both sides, prepared once."""

    def __init__(self, place: Path) -> None:
        self.archive = place / "files.tar"
        self.project = place / "project"
        self._cache = place / "npm-cache"

    async def prepare(self, files: int) -> None:
        with tarfile.open(self.archive, "w") as archive:
            for number in range(files):
                name = f"d{number // 100:03}/f{number:05}.txt"
                info = tarfile.TarInfo(name)
                info.size, info.mtime = 2048, OLD + number
                info.mode = 0o755 if number % 10 == 0 else 0o644
                archive.addfile(info, io.BytesIO(f"{number:016}".encode() * 128))
        self.project.mkdir()
        manifest = {"name": "bench", "version": "1.0.0", "dependencies": PACKAGES}
        (self.project / "package.json").write_text(json.dumps(manifest))
        me = os.geteuid()
        await self._npm("install", self.project, me)
        await self._npm("ci", self.project, me)  # and what only `ci` asks for
        shutil.rmtree(self.project / "node_modules")
        # Anybody's: each mount belongs to another user.
        for path in (self.archive.parent, *self._cache.rglob("*"), self._cache):
            path.chmod(0o777)

    async def untar(self, top: Path, uid: int) -> None:
        await command("tar", "-xf", str(self.archive), cwd=top, uid=uid)

    async def npm(self, top: Path, uid: int) -> None:
        await command("cp", "-r", str(self.project), str(top), cwd=top, uid=uid)
        await self._npm("ci", top / "project", uid, "--prefer-offline")

    async def _npm(self, what: str, where: Path, uid: int, *more: str) -> None:
        quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
        await command("npm", what, f"--cache={self._cache}", *quiet, *more, cwd=where, uid=uid)


async def command(*argv: str, cwd: Path, uid: int) -> None:
    """As whom the mount shows its files to belong to, as in a sandbox: a stranger's cost more."""
    whom = uid if os.geteuid() == 0 else None
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        stdout=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd)},
        user=whom,
        group=whom,
    )
    async with asyncio.timeout(SECONDS):
        assert await process.wait() == 0, argv


async def timed(work: Any, top: Path, name: str, uid: int) -> float:
    started = time.perf_counter()
    await work(top, uid)
    await command("python3", "-c", SYNC, name, cwd=top, uid=uid)
    return time.perf_counter() - started


@contextlib.asynccontextmanager
async def plain_mount(name: str, service: SeaweedFS, place: Path) -> AsyncIterator[Plain]:
    mounts = Mounts(place / "plain")
    try:
        yield Plain(name, service, place, mounts)
    finally:
        await mounts.stop_all()


class Plain:
    """The engine as anybody would mount it. Our supervisor starts and ends it, nothing else."""

    def __init__(self, name: str, service: SeaweedFS, place: Path, mounts: Mounts) -> None:
        self._name = name
        self._service = service
        self._cache = place / "plain-cache"
        self.mounts = mounts

    async def mount(self, session: str) -> Path:
        self._cache.mkdir(exist_ok=True)
        where, uid = self.mounts.parent(session) / "workspace", self.mounts.uid(session)
        env = {"PATH": os.environ["PATH"], "HOME": str(self._cache)}
        if self._name == "geesefs":
            argv = [shutil.which("geesefs") or "geesefs", "-f"]
            argv += ["--endpoint", self._service.endpoint, "--region", "us-east-1"]
            argv += ["--list-type", "2", "--no-detect", "--no-expire-multipart", "--enable-perms"]
            argv += ["--enable-mtime", "--retry-interval", "1s", "--stat-cache-ttl", "10m"]
            argv += ["--memory-limit", "500", "--print-stats", "0"]
            argv += ["--uid", str(uid), "--gid", str(uid)]
            argv += ["-o", "allow_other"] if os.geteuid() == 0 else []
            argv += [f"{BUCKET}:{session}", str(where)]
            env["AWS_ACCESS_KEY_ID"] = self._service.access_key
            env["AWS_SECRET_ACCESS_KEY"] = self._service.secret_key
        else:
            argv = [str(find_weed(Settings())), "-logtostderr=true", "mount", f"-dir={where}"]
            argv += [f"-filer={self._service.filer}", f"-filer.path=/buckets/{BUCKET}/{session}"]
            argv += [f"-cacheDir={self._cache}", f"-localSocket={self._cache}.sock"]
            argv += ["-disableXAttr", f"-map.uid={uid}:0", f"-map.gid={uid}:0"]
        mount = await self.mounts.mount(session, self._name, argv, env)
        if self._name == "weed" and os.geteuid() == 0:
            os.chown(mount.path, uid, uid)
        return mount.path


async def our_side(ours: HostMounted, name: str, work: Work, into: Seconds) -> None:
    session = str(uuid.uuid4())
    workspace, _ = await ours.ready(session)
    uid = workspace.path.stat().st_uid
    into["untar"].append(await timed(work.untar, workspace.path, name, uid))
    await workspace.barrier("turn", 1)
    for span in ("cold", "again"):
        into[span].append(await remounted(ours, workspace, session))
    # A second look at the same mount: the walk alone.
    want = await restore.wanted(session, ours._store, ours._manifests)
    grain = workspace.engine.mtime_grain_ns
    done = await restore.restore(workspace.files, want, ask=True, grain_ns=grain)
    assert not done, done
    into["nothing to do"].append(done.took)
    again = await ours.workspace(session)
    assert again is not None
    into["npm"].append(await timed(work.npm, again.path, name, uid))
    await ours.release(session, forget=True)


async def remounted(ours: HostMounted, workspace: MountedWorkspace, session: str) -> float:
    current = await ours.workspace(session) or workspace
    processes.kill(current.mount.daemon)
    await processes.wait_gone(current.mount.daemon, 10)
    started = time.perf_counter()
    await ours.ready(session)
    return time.perf_counter() - started


async def plain_side(plain: Plain, name: str, work: Work, into: Seconds) -> None:
    session = str(uuid.uuid4())
    top, uid = await plain.mount(session), plain.mounts.uid(session)
    into["plain untar"].append(await timed(work.untar, top, name, uid))
    await plain.mounts.unmount(session, gently=False)
    started = time.perf_counter()
    top = await plain.mount(session)
    into["plain cold"].append(time.perf_counter() - started)
    into["plain npm"].append(await timed(work.npm, top, name, uid))
    await plain.mounts.forget(session)


SPANS = ("untar", "npm", "cold")
OTHERS = ("again", "nothing to do")


async def run(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    rows = []
    with short_directory() as place:
        (place / "store").mkdir()
        work = Work(place)
        await work.prepare(options.files)
        async with seaweedfs(place / "store") as service:
            await make_buckets(service)
            for name in options.engines.split(","):
                taken = Seconds(list)
                async with (
                    engine(name, service, place) as ours,
                    plain_mount(name, service, place) as plain,
                ):
                    for number in range(options.rounds):
                        progress.print(f"{name}: round {number + 1} of {options.rounds}")
                        if number % 2 == 0:
                            await our_side(ours, name, work, taken)
                        await plain_side(plain, name, work, taken)
                        if number % 2:
                            await our_side(ours, name, work, taken)
                medians = {span: statistics.median(times) for span, times in taken.items()}
                ratios = {s: round(medians[s] / medians[f"plain {s}"], 3) for s in SPANS[:2]}
                rows.append({"engine": name, "ratios": ratios, "medians": medians, "all": taken})
    return {"goal": GOAL, "fidelity": rows}


def table(result: dict[str, Any]) -> Table:
    shown = Table(
        title=f"our mounts, median seconds; goal: ours / plain at most {GOAL:.2f}",
        caption="cold: mounted again after a kill, metadata put back, probed; plain cold: mounted, "
        "metadata lost; again: once more; nothing to do: the look through a mount that is right",
    )
    for column in ("engine", "what", "plain", "ours", "ours / plain"):
        shown.add_column(column, justify="left" if column in ("engine", "what") else "right")
    for row in result["fidelity"]:
        for span in (*SPANS, *OTHERS):
            plain = row["medians"].get(f"plain {span}")
            ratio = row["ratios"].get(span)
            colour = "green" if ratio is not None and ratio <= GOAL else "red"
            shown.add_row(
                row["engine"],
                span,
                "" if plain is None else f"{plain:.2f}",
                f"{row['medians'][span]:.2f}",
                "" if ratio is None else f"[{colour}]{ratio:.2f}[/]",
            )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="weed,geesefs" if shutil.which("geesefs") else "weed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(run(options, Console(stderr=True)))
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        Console().print(table(result))
    if any(ratio > GOAL for row in result["fidelity"] for ratio in row["ratios"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
