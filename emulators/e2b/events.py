"""What envd tells of a command."""

from __future__ import annotations

import signal
from typing import Literal

from e2b.envd.process.process_pb import ProcessEvent
from protobuf import Oneof

# The generated types tell a oneof by its literal, which a bare `Oneof("data", ...)` loses.
Start = Oneof[Literal["start"], ProcessEvent.StartEvent]
Data = Oneof[Literal["data"], ProcessEvent.DataEvent]
End = Oneof[Literal["end"], ProcessEvent.EndEvent]
Ping = Oneof[Literal["keepalive"], ProcessEvent.KeepAlive]
Out = Oneof[Literal["stdout"], bytes]
Err = Oneof[Literal["stderr"], bytes]


def started(pid: int) -> ProcessEvent:
    return ProcessEvent(event=Start("start", ProcessEvent.StartEvent(pid=pid)))


def wrote(output: Out | Err) -> ProcessEvent:
    return ProcessEvent(event=Data("data", ProcessEvent.DataEvent(output=output)))


def ping() -> ProcessEvent:
    return ProcessEvent(event=Ping("keepalive", ProcessEvent.KeepAlive()))


def ended(code: int) -> ProcessEvent:
    """`code` is minus a signal's number for who was killed. In the words of Go's os/exec."""
    if code >= 0:
        status = f"exit status {code}"
    else:
        status = f"signal: {signal.strsignal(-code) or -code}".lower()
    end = ProcessEvent.EndEvent(
        exit_code=max(code, -1),
        exited=code >= 0,
        status=status,
        error=status if code else None,
    )
    return ProcessEvent(event=End("end", end))
