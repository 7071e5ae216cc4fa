"""Runs one command inside a box: `enter.py CHILD_PID CWD attached|detached -- ARGV…`.

A script of the standard library only, one process per command: joining namespaces needs a
single thread. Attached, the command dies with this process; detached, it lives on in the box.
The environment is the command's own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings  # noqa: F401 - execvpe imports it, and inside the box there is no library

# Not pathlib: importing it takes as long as all the rest, and this runs for every command.
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120

import namespaces as ns  # type: ignore[import-not-found]

BOX_UID = 1000
NOT_EXECUTABLE, NOT_FOUND, NO_BOX = 126, 127, 125


def join(pid: int) -> None:
    kinds = ["mnt", "pid", "net", "ipc", "uts"]
    if os.stat(f"/proc/{pid}/ns/cgroup").st_ino != os.stat("/proc/self/ns/cgroup").st_ino:  # noqa: PTH116
        kinds.append("cgroup")  # bubblewrap has only tried to make one
    fds = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    users = ns.owning_user_namespaces(pid)
    root = os.geteuid() == 0
    if root:
        os.setgroups([])
    elif users:
        ns.setns(users.pop(0))
    for fd in fds:
        ns.setns(fd)
    # Root goes straight into the innermost; an owner steps down one by one.
    for fd in users[-1:] if root else users:
        ns.setns(fd)
    if root:
        os.setresgid(BOX_UID, BOX_UID, BOX_UID)
        os.setresuid(BOX_UID, BOX_UID, BOX_UID)


def run(cwd: str, argv: list[str], *, attached: bool) -> None:
    os.setsid()
    if attached:
        ns.die_with_parent(signal.SIGKILL)
        if os.getppid() != 0:  # a living parent is outside the namespace: it died in between
            os._exit(NO_BOX)
    ns.give_up_privileges()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python ignores it, and what is ignored stays so: `yes | head -1` would complain, not end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, os.environ)
    except FileNotFoundError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename or argv[0]}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {argv[0]}\n")
        sys.stderr.flush()
        os._exit(NOT_EXECUTABLE)


def main() -> None:
    pid, cwd, mode, _, *argv = sys.argv[1:]
    attached = mode == "attached"
    try:
        join(int(pid))
    except OSError as error:
        sys.stderr.write(f"cannot enter the box: {error}\n")
        sys.exit(NO_BOX)
    if attached:  # after the change of credentials, which clears it
        ns.die_with_parent(signal.SIGKILL)
    child = os.fork()  # only a child is in the PID namespace
    if child == 0:
        # Detached, it must have a father inside: the box's first process then reaps it. The
        # host's may take its time, and until then the box cannot end.
        if not attached and os.fork() != 0:
            os._exit(0)
        run(cwd, argv, attached=attached)
    for fd in (0, 1, 2):
        os.close(fd)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
