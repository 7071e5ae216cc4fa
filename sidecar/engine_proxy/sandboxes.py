"""What a sandbox's container may be: its name, its labels, and the one shape of its creation.

Six values of a create request are free within bounds (session, epoch, memory, cpus, processes, and
whether it has a disk of its own instead of the session's mount). They are taken out and checked,
and the request is built anew from them. What was sent must equal what was built, field by field,
or is refused by the name of the field that differs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from contracts.errors import EngineCallRefused
from sidecar.engine_proxy.strict_json import shown

STACK_LABEL = "holdfast.stack"
SESSION_LABEL = "holdfast.session"
EPOCH_LABEL = "holdfast.epoch"
KEY_LABEL = "holdfast.key"
# Without a name, so that it goes with the container.
OWN_DISK = {"Type": "volume", "Target": "/session"}

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_EPOCH = "0|[1-9][0-9]{0,17}"
_SESSION = re.compile(_UUID)
_KEY = re.compile(f"(?P<session>{_UUID})-(?P<epoch>{_EPOCH})")


@dataclass(frozen=True)
class Policy:
    """The one image, stack and pair of directories that sandboxes have, and their upper bounds."""

    image: str
    stack: str
    mounts_root: str
    run_root: str
    memory: int
    nano_cpus: int
    pids: int

    def is_name(self, name: str) -> bool:
        """Whether a sandbox of this stack may have this name."""
        prefix = f"holdfast-{self.stack}-"
        return name.startswith(prefix) and bool(_KEY.fullmatch(name[len(prefix) :]))

    def label_filter(self, wanted: object) -> list[str]:
        """The labels to list by: always this stack's, then what of `wanted` narrows it.

        Raises: EngineCallRefused for anything but a list of the labels of one's own sandboxes.
        """
        ours = f"{STACK_LABEL}={self.stack}"
        labels = [ours]
        for label in _list(wanted, "filters.label"):
            key, _, value = _text(label, "filters.label").partition("=")
            known = {SESSION_LABEL: _SESSION, KEY_LABEL: _KEY}.get(key)
            if known and known.fullmatch(value):
                labels.append(f"{key}={value}")
            elif label != ours:
                raise EngineCallRefused(f"the label filter {shown(label)} is not allowed")
        return labels

    def rebuilt(self, name: str, sent: Any) -> dict[str, Any]:
        """The body that creates the sandbox `name`, equal to `sent` and made without it.

        Raises: EngineCallRefused, with the name of the first field that is not as it must be.
        """
        labels = _table(_field(sent, "Labels", ""), "Labels")
        match = _KEY.fullmatch(_text(_field(labels, KEY_LABEL, "Labels"), f"Labels.{KEY_LABEL}"))
        if match is None:
            raise EngineCallRefused(f"Labels.{KEY_LABEL} must be <session>-<epoch>")
        if name != f"holdfast-{self.stack}-{match[0]}":
            raise EngineCallRefused(
                f"the name must be holdfast-{self.stack}-<key>, with the key of the labels"
            )
        host = _table(_field(sent, "HostConfig", ""), "HostConfig")
        built = self._body(
            session=match["session"],
            epoch=match["epoch"],
            box=self.box(name),
            own_disk=_first(_field(host, "Mounts", "HostConfig")) == OWN_DISK,
            memory=_bounded(host, "Memory", self.memory),
            nano_cpus=_bounded(host, "NanoCpus", self.nano_cpus),
            pids=_bounded(host, "PidsLimit", self.pids),
        )
        _must_equal(built, sent, "")
        return built

    def box(self, name: str) -> str:
        """The name of the directory that the sandbox of this name has its sockets in."""
        key = name.removeprefix(f"holdfast-{self.stack}-")
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def _body(
        self,
        *,
        session: str,
        epoch: str,
        box: str,
        own_disk: bool,
        memory: int,
        nano_cpus: int,
        pids: int,
    ) -> dict[str, Any]:
        return {
            "Image": self.image,
            "User": "1000:1000",
            "Hostname": "sandbox",
            "Labels": {
                STACK_LABEL: self.stack,
                SESSION_LABEL: session,
                EPOCH_LABEL: epoch,
                KEY_LABEL: f"{session}-{epoch}",
            },
            "HostConfig": {
                "Mounts": self._mounts(session, box, own_disk=own_disk),
                "Tmpfs": {"/tmp": "rw,nosuid,nodev,exec,size=1g,mode=1777"},  # noqa: S108 - the box's own
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "Memory": memory,
                "NanoCpus": nano_cpus,
                "PidsLimit": pids,
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            },
        }

    def _mounts(self, session: str, box: str, *, own_disk: bool) -> list[dict[str, Any]]:
        mounted = {
            "Type": "bind",
            "Source": f"{self.mounts_root}/{session}",
            "Target": "/session",
            "BindOptions": {"Propagation": "rslave"},
        }
        return [
            OWN_DISK if own_disk else mounted,
            {
                "Type": "bind",
                "Source": f"{self.run_root}/docker/{box}",
                "Target": "/run/holdfast/box",
            },
            {
                "Type": "bind",
                "Source": f"{self.run_root}/gateway/{session}",
                "Target": "/run/holdfast/gateway",
                "ReadOnly": True,
            },
            {"Type": "volume", "Target": "/home/agent"},
        ]


def _must_equal(built: Any, sent: Any, where: str) -> None:
    # types first: in Python True equals 1 and 1 equals 1.0
    if type(sent) is not type(built):
        raise EngineCallRefused(f"{where or 'the body'} is of the wrong type")
    if isinstance(built, dict):
        for name in sent:
            # exactly this spelling: the engine's decoder takes `privileged` for Privileged
            if name not in built:
                raise EngineCallRefused(f"{_below(where, name)} is not allowed")
        for name, value in built.items():
            _must_equal(value, _field(sent, name, where), _below(where, name))
    elif isinstance(built, list):
        if len(sent) != len(built):
            raise EngineCallRefused(f"{where} must have {len(built)} entries, not {len(sent)}")
        for index, value in enumerate(built):
            _must_equal(value, sent[index], f"{where}[{index}]")
    elif sent != built:
        raise EngineCallRefused(f"{where} is not what a sandbox has")


def _below(where: str, name: str) -> str:
    # names that we know are shown as they are, others in quotes
    known = name if re.fullmatch(r"[A-Za-z0-9.]{1,40}", name) else shown(name)
    return f"{where}.{known}" if where else known


def _field(table: Any, name: str, where: str) -> Any:
    found = _table(table, where or "the body")
    if name not in found:
        raise EngineCallRefused(f"{_below(where, name)} is missing")
    return found[name]


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EngineCallRefused(f"{where} is of the wrong type")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise EngineCallRefused(f"{where} is of the wrong type")
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise EngineCallRefused(f"{where} is of the wrong type")
    return value


def _bounded(host: dict[str, Any], name: str, most: int) -> int:
    value = _field(host, name, "HostConfig")
    # not isinstance: True is an int. From 1 on: 0 and -1 mean no limit to the engine.
    if type(value) is not int or not 1 <= value <= most:
        raise EngineCallRefused(f"HostConfig.{name} must be a number from 1 to {most}")
    return value
