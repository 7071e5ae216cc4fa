"""Another wall clock for one Python process, which can be stepped while it runs.

An interpreter that `tests.chaos.clocks` has made imports this at its start. For the services of a
stack it replaces what CPython's `time` and `datetime` ask for the time of day, at the level of
their C functions, so that it does not matter who has imported them how. `time.monotonic`, the
kernel, and every other process keep their time.
"""

from __future__ import annotations

import ctypes
import datetime
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any

SERVICES = ("sidecar", "sidecar.gateway", "api")
METH_VARARGS, METH_KEYWORDS, METH_NOARGS, METH_CLASS, METH_FASTCALL = 1, 2, 4, 16, 128

NO_ARGS = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
FAST = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p
)
# Behind an object's head: of a C function its definition at once, of a class method's descriptor
# behind its type, its name and its qualified name.
HEAD = object.__basicsize__
OF_FUNCTION, OF_DESCRIPTOR = HEAD, HEAD + 3 * ctypes.sizeof(ctypes.c_void_p)

# The new functions must outlive every call.
kept: list[Any] = []


class MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def replace(owner: object, offset: int, flags: int, kind: Any, make: Any) -> None:
    """Put `make(original)` in the place of a C function. Raises: RuntimeError."""
    address = ctypes.c_void_p.from_address(id(owner) + offset).value
    definition = MethodDef.from_address(address or 0)
    if definition.flags != flags:
        raise RuntimeError(f"{owner} is called in another way by this release of Python")
    new = kind(make(kind(definition.function)))
    kept.append(new)
    definition.function = ctypes.cast(new, ctypes.c_void_p).value


def step_clock(file: Path) -> None:
    """The clock is off by what `file` says, a double of seconds, at every call."""
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), 8, prot=mmap.PROT_READ)
    kept.append(shared)

    def offset() -> float:
        return float(struct.unpack_from("d", shared)[0])

    def later(original: Any) -> Any:
        return lambda *args: original(*args) + datetime.timedelta(seconds=offset())

    replace(
        time.time, OF_FUNCTION, METH_NOARGS, NO_ARGS,
        lambda original: lambda *args: original(*args) + offset(),
    )  # fmt: skip
    replace(
        time.time_ns, OF_FUNCTION, METH_NOARGS, NO_ARGS,
        lambda original: lambda *args: original(*args) + int(offset() * 1e9),
    )  # fmt: skip
    own = vars(datetime.datetime)
    replace(own["utcnow"], OF_DESCRIPTOR, METH_NOARGS | METH_CLASS, NO_ARGS, later)
    fast = METH_FASTCALL | METH_KEYWORDS | METH_CLASS
    replace(own["now"], OF_DESCRIPTOR, fast, FAST, later)


service = sys.orig_argv[-1] if "-m" in sys.orig_argv else ""
if service in SERVICES:
    step_clock(Path(sys.prefix) / "clocks" / service)
