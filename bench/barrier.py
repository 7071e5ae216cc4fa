"""The barrier beside the writing that it proves, on real mounts.

    uv run python -m bench.barrier [--engines weed,geesefs] [--files 100,1000,10000] [--rounds 3]
                                   [--json]

A process in a sandbox writes so many files of 2 KiB, a hundred to a directory. The plain side ends
with what an engine's own user would do to be safe: every file fsynced, geesefs's top directory too.
Ours ends with the barrier. They take turns. Then the same workspace again, with nothing changed and
with one file in a hundred changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aioboto3
from rich.console import Console
from rich.table import Table

from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.daemons import Geesefs, Weed
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.providers.base import Command, SandboxSpec
from sidecar.providers.local import LocalProvider
from sidecar.workspace.engine import DurableSandbox
from sidecar.workspace.geesefs import with_geesefs
from sidecar.workspace.host_mounted import HostMounted
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import with_weed
from stack.install.binaries import find_weed
from stack.install.bubblewrap import install_bwrap
from stack.settings import Settings
from tests.support.services import SeaweedFS, seaweedfs, short_directory

GOAL = 1.10
SECONDS = 1800
BUCKET, STATE_BUCKET = "sessions", "state"
# argv: how many, every how many-th, the text that makes them differ.
WRITE = """
import os, sys
count, step, text = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
for n in range(0, count, step):
    if n % 100 == 0:
        os.makedirs("d%03d" % (n // 100), exist_ok=True)
    with open("d%03d/f%05d.txt" % (n // 100, n), "wb") as file:
        file.write((b"%s %06d " % (text, n)).ljust(16) * 128)
"""
SYNC = """
import concurrent.futures, os, sys, threading
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
paths = [os.path.join(d, f) for d, _, files in os.walk(".") for f in files]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(sync, paths))
if sys.argv[1] == "geesefs":
    root = threading.Thread(target=sync, args=(".",))
    root.start()
    while root.is_alive():
        os.close(os.open(paths[0], os.O_RDONLY))
        root.join(0.05)
"""

Seconds = defaultdict[str, list[float]]


@contextlib.asynccontextmanager
async def engine(name: str, service: SeaweedFS, place: Path) -> AsyncIterator[HostMounted]:
    address = StoreAddress(service.endpoint, service.access_key, service.secret_key, BUCKET)
    boxes = Boxes(place / "data", place / "run", install_bwrap(Settings()))
    mounts, local = Mounts(place / "data"), LocalProvider(OwnBoxes(boxes, {}))
    weed = Weed(find_weed(Settings()), service.filer, BUCKET, place / "cache", place / "run")
    geesefs = Geesefs(Path(shutil.which("geesefs") or "geesefs"), service.endpoint, BUCKET)
    host = OwnMounts(mounts, {"weed": weed, "geesefs": geesefs}, BUCKET)
    async with Store.open(address) as store, SessionKeys.open(address) as keys:
        manifests = Manifests(store.in_bucket(STATE_BUCKET))
        try:
            wrap = with_geesefs if name == "geesefs" else with_weed
            yield wrap(local, host, store, manifests, keys)
        finally:
            await boxes.stop_all()
            await mounts.stop_all()


@contextlib.asynccontextmanager
async def session(durable: HostMounted, place: Path) -> AsyncIterator[DurableSandbox]:
    key = str(uuid.uuid4())
    sandbox = await durable.create(SandboxSpec(key, key, {"session": key}, place / "gw"))
    try:
        yield sandbox
    finally:
        await durable.destroy(sandbox.id)
        await durable.release(key, forget=True)


async def script(sandbox: DurableSandbox, text: str, *arguments: str) -> float:
    started = time.perf_counter()
    result = await sandbox.exec(Command(["python3", "-c", text, *arguments], timeout=SECONDS))
    assert result.exit_code == 0, result.stderr.decode()
    return time.perf_counter() - started


async def barrier(sandbox: DurableSandbox, epoch: int) -> float:
    started = time.perf_counter()
    async with sandbox.frozen():
        await sandbox.workspace.barrier(f"turn-{epoch}", epoch)
    return time.perf_counter() - started


async def plain_side(durable: HostMounted, place: Path, files: int, into: Seconds) -> None:
    async with session(durable, place) as sandbox:
        wrote = await script(sandbox, WRITE, str(files), "1", "plain")
        synced = await script(sandbox, SYNC, sandbox.report.engine)
        into["plain"].append(wrote + synced)


async def our_side(durable: HostMounted, place: Path, files: int, into: Seconds) -> None:
    async with session(durable, place) as sandbox:
        into["write"].append(await script(sandbox, WRITE, str(files), "1", "ours"))
        into["all changed"].append(await barrier(sandbox, 1))
        into["ours"].append(into["write"][-1] + into["all changed"][-1])
        into["nothing changed"].append(await barrier(sandbox, 2))
        into["write 1 %"].append(await script(sandbox, WRITE, str(files), "100", "again"))
        into["1 % changed"].append(await barrier(sandbox, 3))


SPANS = ("write", "plain", "ours", "all changed", "nothing changed", "write 1 %", "1 % changed")


async def measure(durable: HostMounted, place: Path, files: int, rounds: int) -> dict[str, Any]:
    taken = Seconds(list)
    for number in range(rounds):
        for side in (plain_side, our_side)[:: 1 if number % 2 == 0 else -1]:
            await side(durable, place, files, taken)
    medians = {span: statistics.median(taken[span]) for span in SPANS}
    return {
        "files": files,
        "ratio": round(medians["ours"] / medians["plain"], 3),
        "barrier_by_write": round(medians["all changed"] / medians["write"], 3),
        **{span: round(seconds, 3) for span, seconds in medians.items()},
        "rounds": {span: [round(one, 3) for one in taken[span]] for span in SPANS},
    }


async def run(options: argparse.Namespace, progress: Console) -> dict[str, Any]:
    rows = []
    with short_directory() as place:
        (place / "store").mkdir()
        async with seaweedfs(place / "store") as service:
            await make_buckets(service)
            for name in options.engines.split(","):
                async with engine(name, service, place) as durable:
                    for files in map(int, options.files.split(",")):
                        progress.print(f"{name}: {files} files, {options.rounds} rounds")
                        row = await measure(durable, place, files, options.rounds)
                        rows.append({"engine": name, **row})
                        progress.print({span: row[span] for span in SPANS})
    return {"goal": GOAL, "barrier": rows}


async def make_buckets(service: SeaweedFS) -> None:
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=service.endpoint,
        aws_access_key_id=service.access_key,
        aws_secret_access_key=service.secret_key,
        region_name="us-east-1",
    ) as s3:
        for bucket in (BUCKET, STATE_BUCKET):
            await s3.create_bucket(Bucket=bucket)


def table(result: dict[str, Any]) -> Table:
    shown = Table(
        title=f"the barrier, median seconds; goal: ours / plain at most {GOAL:.2f}",
        caption="plain: write, then fsync all; ours: write, then barrier; the last four columns: "
        "the same workspace at its next two barriers, and writing one file in a hundred",
    )
    for column in ("engine", "files", *SPANS[:3], "ratio", *SPANS[3:]):
        shown.add_column(column, justify="left" if column == "engine" else "right")
    for row in result["barrier"]:
        colour = "green" if row["ratio"] <= GOAL else "red"
        first, rest = ([f"{row[span]:.2f}" for span in part] for part in (SPANS[:3], SPANS[3:]))
        ratio = f"[{colour}]{row['ratio']:.2f}[/]"
        shown.add_row(row["engine"], str(row["files"]), *first, ratio, *rest)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="The barrier beside the writing it proves.")
    default = "weed,geesefs" if shutil.which("geesefs") else "weed"
    parser.add_argument("--engines", default=default, help="separated by commas")
    parser.add_argument("--files", default="100,1000,10000", help="separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.engines.split(",")) - {"weed", "geesefs"}:
        parser.error(f"there is no engine {', '.join(sorted(unknown))}")
    if "geesefs" in options.engines and shutil.which("geesefs") is None:
        parser.error("no geesefs on PATH")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    result = asyncio.run(run(options, Console(stderr=True)))
    if options.json:
        print(json.dumps(result))
    else:
        Console().print(table(result))


if __name__ == "__main__":
    main()
