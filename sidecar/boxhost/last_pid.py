"""Tells the last pid that was given out in a box: `last_pid.py CHILD_PID`.

A script of the standard library only. Prints the pid of the process that it starts in the box's PID
namespace, and then a line with the last pid for every line that it is sent. It ends with its stdin.

Who is asked is in the box's PID namespace alone, and still has the host's files: nobody in the box
may look into it.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120

import namespaces as ns  # type: ignore[import-not-found]


def join_pid_namespace(pid: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    users = [] if os.geteuid() == 0 else ns.owning_user_namespaces(pid)
    if users:  # the outermost of them owns the others
        ns.setns(users[0])
    ns.setns(namespace)
    ns.forbid_dumps()  # last: a change of credentials would undo it


def answer() -> None:
    loadavg = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    while os.read(0, 1):
        say(os.pread(loadavg, 256, 0).split()[4])


def say(number: bytes) -> None:
    os.write(1, number + b"\n")


def main() -> None:
    join_pid_namespace(int(sys.argv[1]))
    child = os.fork()  # only a child is in the PID namespace
    if child == 0:
        answer()
        os._exit(0)
    say(str(child).encode())
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
