"""The few Linux calls that Python 3.11 lacks. Standard library only: keeper and enter import it
as a neighbouring file, without the project on their path."""

from __future__ import annotations

import ctypes
import fcntl
import os

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 4096, 16384, 1 << 19, 1 << 20
MNT_DETACH = 2

_NS_GET_PARENT = 0xB702
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(
    source: str | None, target: str, fs: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    encoded = [
        None if value is None else os.fsencode(value) for value in (source, target, fs, data)
    ]
    _check(
        _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mount {target}",
    )


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int) -> None:
    _check(_libc.setns(fd, 0), "setns")


def die_with_parent(sig: int) -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0), "prctl PDEATHSIG")


def forbid_dumps() -> None:
    """Nobody without privilege may look into this process, or into a child before its exec."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl DUMPABLE")


def give_up_privileges() -> None:
    """No new privileges by any exec, and no capability to be had ever again."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")


def owning_user_namespaces(pid: int) -> list[int]:
    """Descriptors of the user namespaces to join to act in the box of `pid`, outermost first.

    bubblewrap nests two: the outer one owns the box's other namespaces, the inner one holds the
    final uid. Our own namespace is not among them.
    """
    own = os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116 - no pathlib in the keeper
    chain = [os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)]
    if os.fstat(chain[0]).st_ino == own:
        return []
    while True:
        try:
            parent = fcntl.ioctl(chain[0], _NS_GET_PARENT)
        except PermissionError:  # the parent is above our own namespace
            return chain
        if os.fstat(parent).st_ino == own:
            os.close(parent)
            return chain
        chain.insert(0, parent)
