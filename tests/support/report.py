"""The dashboard at the end of a run: where its time went, what it started, and what it skipped.

It is also written to `.test-report/`, as JSON and as the text that was shown, with the table of
crash points beside it.
`tests/reference.json` is such a JSON of an accepted run: folders that are slower now are marked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.crash.table import PROPERTY, Line, Table
from tests.support.known_skips import unknown_skips

DIRECTORY = ".test-report"
REFERENCE = "tests/reference.json"
SLOWEST = 10
# Below these a difference is noise of the machine.
SLOWER_RATIO, SLOWER_SECONDS = 1.5, 20.0

CPUACCT, CGROUP2 = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")


class CpuMeter:
    """CPU seconds of this process and of all that it started, also of what was detached from it:
    by a cgroup of their own. Where none can be made, of its children that have ended. What runs in
    a container is the engine's and is not counted."""

    def __init__(self) -> None:
        self._group: Path | None = None
        for parent, usage in ((CPUACCT, "cpuacct.usage"), (CGROUP2, "cpu.stat")):
            group = parent / f"holdfast-tests-{os.getpid()}"
            try:
                if not (parent / "cgroup.procs").exists():
                    continue
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                continue
            self._group, self._usage = group, group / usage
            break

    def read(self) -> float:
        if self._group is None:
            kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, kinds))
        text = self._usage.read_text()
        if self._usage.name == "cpuacct.usage":
            return int(text) / 1e9
        return int(dict(line.split() for line in text.splitlines())["usage_usec"]) / 1e6

    def close(self) -> None:
        """Leave the cgroup; what outlives the run keeps it."""
        if self._group is not None:
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):
                self._group.rmdir()
            self._group = None


_METER = pytest.StashKey[CpuMeter]()
_AT_LAST_TEST = pytest.StashKey[float]()
_programs: Counter[str] = Counter()


def _count_programs() -> None:
    # Bound here: an audit hook is called until the very end, when the globals are gone.
    starts = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"})

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in starts:
            program = arguments[0] if arguments else "fork"
            _programs[Path(os.fsdecode(program)).name] += 1

    sys.addaudithook(count)


_count_programs()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist only measures
        config.pluginmanager.register(Dashboard(config.rootpath), "dashboard")


def pytest_collection_finish(session: pytest.Session) -> None:
    meter = session.config.stash[_METER] = CpuMeter()
    session.config.add_cleanup(meter.close)
    session.config.stash[_AT_LAST_TEST] = meter.read()
    _programs.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Measure each test in the process that runs it; its report takes the figures home."""
    report = yield
    if report.when == "teardown":
        before, now = item.config.stash[_AT_LAST_TEST], item.config.stash[_METER].read()
        item.config.stash[_AT_LAST_TEST] = now
        report.user_properties.append(("cpu", now - before))
        report.user_properties.append(("programs", dict(_programs)))
        _programs.clear()
    return report


@dataclass
class Machine:
    """Counters of the whole machine: detached stacks and containers are children of nobody here."""

    at: float
    busy: float
    forks: int

    @classmethod
    def read(cls) -> Machine:
        lines = Path("/proc/stat").read_text().splitlines()
        numbers = {name: values for name, *values in map(str.split, lines)}
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, numbers["cpu"])
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), busy, int(numbers["processes"][0]))


@dataclass
class Folder:
    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


@dataclass(eq=False)
class Dashboard:
    """Lives in the process that reports: with pytest-xdist, the one that hands out the tests."""

    root: Path
    start: Machine = field(default_factory=Machine.read)
    folders: dict[str, Folder] = field(default_factory=lambda: defaultdict(Folder))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    programs: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)
    crash_points: list[Line] = field(default_factory=list)
    containers: subprocess.Popen[bytes] | None = None

    def pytest_sessionstart(self) -> None:
        if Path("/var/run/docker.sock").exists():
            self.containers = _watch_containers()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("@")[0]  # behind it is the group of pytest-xdist
        folder = self.folders[folder_of(test)]
        folder.seconds += report.duration
        self.seconds[test] += report.duration
        if report.when == "teardown":
            folder.tests += 1
            found: dict[str, Any] = dict(report.user_properties)
            folder.cpu += found.get("cpu", 0.0)
            self.cpu[test] += found.get("cpu", 0.0)
            self.programs.update(found.get("programs", {}))
            self.crash_points += [Line(**line) for line in found.get(PROPERTY, ())]
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skips[_reason(report)] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        unknown = unknown_skips(self.skips)
        if unknown and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.seconds:
            return
        figures = self.figures()
        text = "\n".join(render(figures, self._reference()))
        directory = self.root / DIRECTORY
        directory.mkdir(exist_ok=True)
        (directory / "report.json").write_text(json.dumps(figures, indent=1) + "\n")
        (directory / "report.txt").write_text(text + "\n")
        if self.crash_points:
            table = "\n".join(Table(self.crash_points).render())
            (directory / "crash-points.md").write_text(table + "\n")
        terminalreporter.write_sep("=", "where the run went")
        terminalreporter.write_line(text)
        for reason, count in unknown_skips(self.skips).items():
            terminalreporter.write_line(
                f"UNKNOWN SKIP, {count} times: {reason}\n"
                "  CI fails for it: install what is missing, or add it to known_skips.py",
                red=True,
            )

    def _reference(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.root / REFERENCE).read_text())
        except FileNotFoundError:
            return {}
        return found

    def figures(self) -> dict[str, Any]:
        now = Machine.read()
        return {
            "minutes": (now.at - self.start.at) / 60,
            "core_minutes": (now.busy - self.start.busy) / 60,
            "tests": len(self.seconds),
            "forks": now.forks - self.start.forks,
            "containers": _stop_counting(self.containers),
            "programs": dict(self.programs.most_common()),
            "folders": {
                name: {"tests": each.tests, "seconds": each.seconds, "cpu": each.cpu}
                for name, each in sorted(self.folders.items(), key=lambda item: -item[1].seconds)
            },
            "files": self._files(),
            "slowest": _top(self.seconds),
            "hungriest": _top(self.cpu),
            "skips": dict(self.skips.most_common()),
        }

    def _files(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = defaultdict(lambda: {"seconds": 0.0, "cpu": 0.0})
        for test, seconds in self.seconds.items():
            file = found[test.partition("::")[0]]
            file["seconds"] += seconds
            file["cpu"] += self.cpu[test]
        return dict(sorted(found.items(), key=lambda item: -item[1]["cpu"]))


def _top(figures: dict[str, float]) -> dict[str, float]:
    return dict(sorted(figures.items(), key=lambda item: -item[1])[:SLOWEST])


def folder_of(test: str) -> str:
    """`tests/e2e` for a file in it, `tests/integration/api` for one in a folder of it."""
    parts = test.partition("::")[0].split("/")[1:-1]
    return "/".join(parts[:2]) or "tests"


def render(figures: dict[str, Any], reference: dict[str, Any]) -> Iterable[str]:
    was = reference.get("folders", {})
    yield f"{'folder':28} {'tests':>6} {'seconds':>8} {'cpu':>7} {'before':>7}"
    for name, each in figures["folders"].items():
        before = was.get(name, {}).get("seconds")
        slower = before is not None and is_slower(each["seconds"], before)
        yield (
            f"{name:28} {each['tests']:6} {each['seconds']:8.1f} {each['cpu']:7.1f}"
            f" {'-' if before is None else f'{before:.1f}':>7}{'  SLOWER' if slower else ''}"
        )
    yield ""
    yield from (f"{seconds:7.1f} s  {test}" for test, seconds in figures["slowest"].items())
    yield ""
    yield from (f"{cpu:7.1f} s of CPU  {test}" for test, cpu in figures["hungriest"].items())
    yield ""
    programs = list(figures["programs"].items())
    yield (
        f"{figures['tests']} tests in {figures['minutes']:.1f} minutes,"
        f" {figures['core_minutes']:.1f} core-minutes of the machine"
        + (f" (before: {reference['core_minutes']:.1f})" if "core_minutes" in reference else "")
    )
    yield (
        f"{figures['forks']} forks on the machine, {figures['containers']} containers;"
        f" {sum(count for _, count in programs)} processes started by tests: "
        + ", ".join(f"{name} {count}" for name, count in programs[:12])
    )
    skips = figures["skips"]
    yield f"{sum(skips.values())} skipped" + (":" if skips else "")
    yield from (f"{count:7} x  {reason}" for reason, count in skips.items())


def is_slower(seconds: float, before: float) -> bool:
    return seconds > before * SLOWER_RATIO and seconds > before + SLOWER_SECONDS


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return re.sub(r"^Skipped: ", "", text)


def _watch_containers() -> subprocess.Popen[bytes] | None:
    argv = ["docker", "events", "--filter", "type=container", "--filter", "event=create"]
    try:
        return subprocess.Popen(
            [*argv, "--format", "{{.ID}}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return None


def _stop_counting(events: subprocess.Popen[bytes] | None) -> int:
    """How many containers were created while `events` was watching."""
    if events is None:
        return 0
    events.terminate()
    out, _ = events.communicate(timeout=10)
    return len(out.split())
