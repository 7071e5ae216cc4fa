"""A wall clock for each of a stack's own services, which can be stepped while it runs.

The stack is started by an interpreter of its own: the one of this environment, with a
`sitecustomize` (see `stepped_clock`). The product knows nothing of it, and the machine's clock
stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.running_stack import HOLDFAST
from tests.support.services import short_directory

SITE = Path(__file__).parent / "stepped_clock" / "sitecustomize.py"
MODULES = {"sidecar": "sidecar", "gateway": "sidecar.gateway", "api": "api"}


@dataclass
class Clocks:
    """Of the services, by their names in a plan."""

    directory: Path
    why_not: str = ""
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)

    @property
    def holdfast(self) -> str:
        """The command that starts a stack whose clocks can be stepped, where that is possible."""
        return HOLDFAST if self.why_not else str(self.directory / "bin" / "holdfast")

    @contextlib.asynccontextmanager
    async def stepped(self, service: str, seconds: float) -> AsyncIterator[None]:
        """A service's clock is off for the time of the block."""
        async with self._locks.setdefault(service, asyncio.Lock()):
            try:
                self._set(service, seconds)
                yield
            finally:
                self._set(service, 0.0)

    def _set(self, service: str, seconds: float) -> None:
        # in place: a process that is running has it mapped
        with (self.directory / "clocks" / MODULES[service]).open("r+b") as file:
            file.write(struct.pack("d", seconds))


@contextlib.contextmanager
def stepped_clocks() -> Iterator[Clocks]:
    """An interpreter like this one, with clocks that are right so far."""
    with short_directory() as directory:
        directory.chmod(0o755)  # boxes run programs by other uids
        _make_environment(directory)
        clocks = Clocks(directory)
        for service in MODULES:
            (directory / "clocks" / MODULES[service]).write_bytes(struct.pack("d", 0.0))
        clocks.why_not = _find_trouble(directory)
        yield clocks


def _make_environment(directory: Path) -> None:
    """A virtual environment with the packages and the commands of the one that runs this."""
    own = Path(sys.prefix)
    shutil.copyfile(own / "pyvenv.cfg", directory / "pyvenv.cfg")
    scripts = directory / "bin"
    scripts.mkdir()
    for path in (own / "bin").iterdir():
        if path.name != "holdfast":
            target = path.readlink() if path.is_symlink() else path
            (scripts / path.name).symlink_to(target if target.is_absolute() else target.name)
    command = (own / "bin" / "holdfast").read_text().partition("\n")[2]
    (scripts / "holdfast").write_text(f"#!{scripts}/python\n{command}")
    (scripts / "holdfast").chmod(0o755)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    packages.mkdir(parents=True)
    real = sysconfig.get_path("purelib")
    (packages / "real.pth").write_text(f"import site; site.addsitedir({real!r})\n")
    shutil.copyfile(SITE, packages / SITE.name)
    (directory / "clocks").mkdir()


def _find_trouble(directory: Path) -> str:
    """Why clocks cannot be stepped by this interpreter; empty when they can."""
    (directory / "clocks" / "probe").write_bytes(struct.pack("d", 3600.0))
    script = (
        "import time, datetime, pathlib, sitecustomize as s; before = time.time();"
        f"s.step_clock(pathlib.Path({str(directory / 'clocks' / 'probe')!r}));"
        "utc = datetime.timezone.utc; now = datetime.datetime.now;"
        "off = [time.time(), time.time_ns() / 1e9, now(utc).timestamp(), now().timestamp(),"
        " now(tz=utc).timestamp()];"
        "assert all(3590 < each - before < 3700 for each in off), off"
    )
    done = subprocess.run(
        [directory / "bin" / "python", "-P", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stderr.strip()[-300:]
