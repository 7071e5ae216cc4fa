"""Does one thing inside a box, as a script of the standard library only, one process each: joining
namespaces needs a single thread.

    enter.py STATUS BOX CGROUP CAPABILITIES UID CWD exec ARGV…
    enter.py STATUS BOX CGROUP CAPABILITIES UID CWD read PATH
    enter.py STATUS BOX CGROUP CAPABILITIES UID CWD write PATH MODE

STATUS is a descriptor to write to, BOX the pidfd of the box's first process, CGROUP the
`cgroup.procs` to join or empty, CAPABILITIES the mask of what root may have inside. The environment
is the command's own. `read` writes to stdout, `write` reads stdin.

On STATUS comes one line: `started HOST_PID PID`, or `error ERRNO box|cwd|target`. A command's end
is the end of this process, by the same exit code or the same signal.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import warnings  # noqa: F401 - execvpe imports it, and inside the box there is no library

# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET
_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
_PR_CAPBSET_DROP = 24
_LAST_CAPABILITY = 63
_CHUNK = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def join(box: int, cgroup: str) -> None:
    """Raises: OSError, when the box is gone."""
    if cgroup:
        with open(cgroup, "w") as procs:  # noqa: PTH123 - pathlib takes as long as all the rest
            procs.write("0")
    if _libc.setns(box, _NAMESPACES) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become(uid: int, capabilities: int) -> None:
    """The user, with no more to be had by a setuid program than root has inside."""
    for capability in range(_LAST_CAPABILITY + 1):
        if not capabilities >> capability & 1:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([uid])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def act(what: str, arguments: list[str]) -> None:
    if what == "exec":
        # Python ignores it, and so would everything that it starts.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvpe(arguments[0], arguments, os.environ)
    if what == "read":
        source = os.open(arguments[0], os.O_RDONLY | os.O_CLOEXEC)
        copy(source, 1)
    else:
        path, mode = arguments[0], int(arguments[1])
        parent = path.rpartition("/")[0]
        if parent:
            make_directories(parent)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        os.fchmod(target, mode)
        copy(0, target)


def make_directories(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    except FileExistsError:
        return  # something else: opening a file below it tells what


def copy(source: int, target: int) -> None:
    while data := os.read(source, _CHUNK):
        while data:
            data = data[os.write(target, data) :]


def child(error_fd: int, uid: int, capabilities: int, cwd: str, rest: list[str]) -> None:
    os.setsid()
    os.umask(0o022)
    become(uid, capabilities)
    at = "cwd"
    try:
        os.chdir(cwd)
        at = "target"
        act(rest[0], rest[1:])
    except OSError as error:
        os.write(error_fd, f"error {error.errno} {at}\n".encode())
        os._exit(1)
    os._exit(0)


def end_like(status: int) -> None:
    """End by what ended the command."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    status, box, cgroup, capabilities, uid, cwd, *rest = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = int(status)
    try:
        join(int(box), cgroup)
    except OSError as error:
        os.write(out, f"error {error.errno} box\n".encode())
        os._exit(1)
    inner_read, inner_write = os.pipe()
    error_read, error_write = os.pipe()
    forked = os.fork()  # only a child is in the PID namespace
    if forked == 0:
        os.close(out)
        os.write(inner_write, str(os.getpid()).encode())
        child(error_write, int(uid), int(capabilities), cwd, rest)
    for fd in (0, 1, 2, inner_write, error_write):
        os.close(fd)
    # An exec closes the pipe: nothing in it means that the command runs.
    failure = os.read(error_read, 100)
    os.write(out, failure or b"started %d %s\n" % (forked, os.read(inner_read, 20)))
    os.close(out)
    _, ended = os.waitpid(forked, 0)
    end_like(ended)


if __name__ == "__main__":
    main()
