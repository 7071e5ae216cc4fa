"""The keeper of one box: starts bubblewrap, carries the box's two ports, ends with it.

Run as a script with the standard library only (`python -I -S keeper.py DIRECTORY`), with the box's
description as JSON on stdin; the box's directory is there to find the keeper by. It is a process of
its own so that a box outlives the service that asked for it; bubblewrap in turn dies with the
keeper. It prints one JSON line when the box is up (or why it is not), and then keeps quiet.

The box has an empty network. The keeper joins it, from outside, and offers two ways:
out, a TCP port in the box that leads to the gateway's socket; in, a unix socket on the host that
leads to the agent server's TCP port in the box. No process and no socket file of ours is inside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120

import namespaces as ns  # type: ignore[import-not-found]

STAGE = "/mnt"  # inside the keeper's own mount namespace
READY_SECONDS = 20
# Said aloud: asyncio sets TCP_NODELAY only on a socket that knows its protocol, and without it
# every small answer waits 40 ms.
TCP = socket.IPPROTO_TCP


def stage_binds(binds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make every source reachable for the box's uid, which may not pass through a 0700 parent.

    Slave propagation: a workspace that is mounted anew on the host shows up in the box.
    """
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount(None, "/", None, ns.MS_REC | ns.MS_SLAVE)
    ns.mount("tmpfs", STAGE, "tmpfs", 0, "mode=0755")
    staged = []
    for number, bind in enumerate(binds):
        place = f"{STAGE}/{number}"
        if os.path.isdir(bind["source"]):  # noqa: PTH112
            os.mkdir(place)  # noqa: PTH102
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        ns.mount(bind["source"], place, None, ns.MS_BIND | ns.MS_REC)
        staged.append({**bind, "source": place})
    return staged


def bwrap_command(
    box: dict[str, Any], binds: list[dict[str, Any]], info: int, up: int
) -> list[str]:
    command: list[str] = []
    if box["uid"] is not None:
        # Before bwrap: --unshare-user alone would look unprivileged but be root on the host.
        uid = str(box["uid"])
        command += ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
        command += ["--no-new-privs", "--bounding-set=-all"]
    command += [box["bwrap"], "--info-fd", str(info), *box["options"]]
    for bind in binds:
        command += ["--bind" if bind["writable"] else "--ro-bind", bind["source"], bind["target"]]
    command += [*box["finish"], "--", "/bin/sh", "-c"]
    # Constant text: says that the namespaces are set up, then idles as the box's first process.
    return [*command, f"echo up >&{up}; exec sleep infinity {up}>&-"]


def read_json_object(fd: int) -> dict[str, Any]:
    """bwrap keeps its info descriptor open: read up to the closing brace, not to EOF."""
    text = b""
    while not text.rstrip().endswith(b"}"):
        piece = os.read(fd, 4096)
        if not piece:
            raise RuntimeError("bubblewrap ended before the box was up")
        text += piece
    return dict(json.loads(text))


def wait_until_up(fd: int) -> None:
    if not os.read(fd, 1):
        raise RuntimeError("the box ended while it was being set up")


def say(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")
    os.close(1)


def listen_inside(child: int, port: int) -> socket.socket:
    """Join the box's network and listen there."""
    network = os.open(f"/proc/{child}/ns/net", os.O_RDONLY)
    users = [] if os.geteuid() == 0 else ns.owning_user_namespaces(child)
    if users:  # the outermost of them owns the network
        ns.setns(users[0])
    ns.setns(network)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, TCP)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def listen_outside(path: str, client_uid: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)  # noqa: PTH101
    if client_uid is not None:
        os.chown(path, client_uid, client_uid)
    listener.listen(128)
    return listener


def main() -> None:
    box = json.load(sys.stdin)
    try:
        binds = stage_binds(box["binds"]) if box["uid"] is not None else box["binds"]
        info_read, info_write = os.pipe()
        up_read, up_write = os.pipe()
        command = bwrap_command(box, binds, info_write, up_write)
        bwrap = subprocess.Popen(
            command,
            pass_fds=(info_write, up_write),
            stdin=subprocess.DEVNULL,
            stdout=2,
            env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        )
        os.close(info_write)
        os.close(up_write)
        signal.alarm(READY_SECONDS)
        info = read_json_object(info_read)
        wait_until_up(up_read)
        signal.alarm(0)
        inside = listen_inside(info["child-pid"], box["gateway_port"])
        outside = listen_outside(box["agent_socket"], box["client_uid"])
    except (OSError, RuntimeError) as error:
        say({"ok": False, "error": str(error)})
        sys.exit(1)
    # Whoever connects from now on waits until the imports are done, which are not waited for.
    say({"ok": True, "child_pid": info["child-pid"], "pid_namespace": info["pid-namespace"]})
    import asyncio

    from carrying import Keeper  # type: ignore[import-not-found]

    asyncio.run(Keeper(box).serve(bwrap, outside, inside))


if __name__ == "__main__":
    main()
