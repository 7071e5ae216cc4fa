"""What a load costs while it runs: memory and open files of services, and one commit beside it."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from stack.embedded import postgres
from stack.embedded.layout import Layout

SERVICES = ("api", "sidecar", "gateway")
SAMPLE_SECONDS = 1.0
MINUTE = 60.0
TABLE = "CREATE TABLE IF NOT EXISTS bench_commits (at timestamptz NOT NULL)"
COMMIT = "INSERT INTO bench_commits VALUES (now())"


@dataclass(frozen=True)
class Sample:
    at: float
    rss: int
    files: int
    cpu: float = 0.0


@dataclass
class Watch:
    """Samples of every service, and how long single commits took, in seconds."""

    layout: Layout
    samples: defaultdict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    commits: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """For ever; its task is cancelled at the end."""
        pids = {name: pid_of(self.layout, name) for name in SERVICES}
        conn = await asyncpg.connect(postgres.database_url(self.layout))
        try:
            await conn.execute(TABLE)
            while True:
                for name, pid in pids.items():
                    self.samples[name].append(sample(pid))
                started = time.perf_counter()
                await conn.execute(COMMIT)
                self.commits.append((time.time(), time.perf_counter() - started))
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            await conn.close()

    def memory(self, began: float, warm: float) -> dict[str, Any]:
        """Of each service: the median of every minute from `began` on, and by how much the last
        one after `warm` differs from the first one after it."""
        return {name: self._memory(found, began, warm) for name, found in self.samples.items()}

    def _memory(self, found: Sequence[Sample], began: float, warm: float) -> dict[str, Any]:
        minutes: defaultdict[int, list[int]] = defaultdict(list)
        for each in found:
            if each.at >= began:
                minutes[int((each.at - began) // MINUTE)].append(each.rss)
        after = [each for each in found if each.at >= warm]
        # A minute at each end, or what there is of it in a short run.
        span = min(MINUTE, (after[-1].at - warm) / 2) if after else 0.0
        first = [each.rss for each in after if each.at <= warm + span]
        last = [each.rss for each in after if each.at >= after[-1].at - span]
        return {
            "per_minute_mb": [round(statistics.median(each) / 1e6, 1) for each in minutes.values()],
            "ratio": round(statistics.median(last) / statistics.median(first), 3)
            if first
            else None,
            "most_open_files": max((each.files for each in found), default=0),
            "cpu_seconds": round(found[-1].cpu - found[0].cpu, 1) if found else None,
        }


def pid_of(layout: Layout, name: str) -> int:
    record = json.loads((layout.pids / f"{name}.json").read_text())
    return int(record["process"]["pid"])


def sample(pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    # behind the name, which may hold anything: utime and stime
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Sample(time.time(), int(rss.split()[1]) * 1024, files, cpu)


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """In milliseconds."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    at = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {name: round(1000 * ordered[int(part * last)], 2) for name, part in at.items()}
