"""The calls of the engine's API that are let through, each built anew."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.errors import EngineCallRefused, EngineUnavailable
from sidecar.engine_proxy.boxes import BoxDirectories
from sidecar.engine_proxy.engine import Answer, Engine
from sidecar.engine_proxy.sandboxes import STACK_LABEL, Policy
from sidecar.engine_proxy.strict_json import parse, shown
from sidecar.engine_proxy.target import Target, parse_target

logger = logging.getLogger(__name__)

REMOVED = 204
_YES = ("1", "true")
_CONTAINER = re.compile("/containers/([A-Za-z0-9_-]+)(/json|/start|/kill)?")
_ID = re.compile("[0-9a-f]{64}")

Call = Callable[[Target, bytes], Awaitable[Answer]]


@dataclass(frozen=True)
class _Sandbox:
    """A container that was seen to be ours, by the id that nothing else can take."""

    id: str
    inspected: Answer


class Calls:
    """Judges a request, and asks the engine for what it may have."""

    def __init__(self, policy: Policy, engine: Engine, boxes: BoxDirectories) -> None:
        self._policy = policy
        self._boxes = boxes
        self._engine = engine
        self._fixed: Mapping[tuple[str, str], Call] = {
            ("GET", "/_ping"): self._pass_get,
            ("GET", "/version"): self._pass_get,
            ("GET", f"/images/{policy.image}/json"): self._pass_get,
            ("GET", "/containers/json"): self._list,
            ("POST", "/containers/create"): self._create,
        }
        self._of_a_sandbox: Mapping[tuple[str, str | None], Call] = {
            ("GET", "/json"): self._inspect,
            ("POST", "/start"): self._start,
            ("POST", "/kill"): self._kill,
            ("DELETE", None): self._remove,
        }

    async def answer(self, method: str, raw_target: str, body: bytes) -> Answer:
        """What the engine says to it.

        Raises: EngineCallRefused, EngineUnavailable.
        """
        target = parse_target(raw_target)
        call = self._fixed.get((method, target.path))
        match = _CONTAINER.fullmatch(target.path)
        if call is None and match:
            call = self._of_a_sandbox.get((method, match[2]))
        if call is None:
            raise EngineCallRefused(f"{method} {shown(target.path)} is not allowed")
        # Some clients send an empty object where nothing is asked for.
        if call != self._create and body not in (b"", b"{}"):
            raise EngineCallRefused(f"{method} {shown(target.path)} takes no body")
        return await call(target, body)

    async def _pass_get(self, target: Target, _: bytes) -> Answer:
        _parameters(target)
        return await self._engine.call("GET", target.version + target.path)

    async def _list(self, target: Target, _: bytes) -> Answer:
        given = _parameters(target, may=("all", "filters"))
        if given.get("all", "1") not in _YES:
            raise EngineCallRefused("the parameter all must be 1")
        filters = parse(given.get("filters", "{}"), "filters")
        if not isinstance(filters, dict) or filters.keys() - {"label"}:
            raise EngineCallRefused("filters must be an object with nothing but label")
        labels = self._policy.label_filter(filters.get("label", []))
        query = {"filters": json.dumps({"label": labels})}
        if "all" in given:
            query["all"] = "1"
        return await self._engine.call("GET", f"{target.version}/containers/json", query=query)

    async def _create(self, target: Target, body: bytes) -> Answer:
        name = _parameters(target, must=("name",))["name"]
        built = self._policy.rebuilt(name, parse(body, "the body"))
        self._boxes.make(self._policy.box(name))
        answer = await self._engine.call(
            "POST", f"{target.version}/containers/create", query={"name": name}, body=built
        )
        logger.info("create %s: %d", name, answer.status)
        return answer

    async def _inspect(self, target: Target, _: bytes) -> Answer:
        _parameters(target)
        found = await self._sandbox(target)
        return found.inspected if isinstance(found, _Sandbox) else found

    async def _start(self, target: Target, _: bytes) -> Answer:
        _parameters(target)
        return await self._act(target, "POST", "/start")

    async def _kill(self, target: Target, _: bytes) -> Answer:
        _parameters(target)
        return await self._act(target, "POST", "/kill")

    async def _remove(self, target: Target, _: bytes) -> Answer:
        given = _parameters(target, must=("force", "v"))
        # without v its anonymous volume, the box's HOME, would be left behind
        if any(value not in _YES for value in given.values()):
            raise EngineCallRefused("the parameters force and v must be 1")
        answer = await self._act(target, "DELETE", "", {"force": "1", "v": "1"})
        if answer.status == REMOVED:
            self._boxes.remove(self._policy.box(_name(target)))
        logger.info("delete %s: %d", _name(target), answer.status)
        return answer

    async def _act(
        self, target: Target, method: str, action: str, query: Mapping[str, str] | None = None
    ) -> Answer:
        found = await self._sandbox(target)
        if not isinstance(found, _Sandbox):
            return found
        path = f"{target.version}/containers/{found.id}{action}"
        return await self._engine.call(method, path, query=query)

    async def _sandbox(self, target: Target) -> _Sandbox | Answer:
        """The sandbox of that name, or the engine's answer when it has none."""
        name = _name(target)
        if not self._policy.is_name(name):
            raise EngineCallRefused(f"{shown(name)} is not the name of a sandbox of this stack")
        answer = await self._engine.call("GET", f"{target.version}/containers/{name}/json")
        if answer.status != 200:
            return answer
        container_id, label = _identity(answer.body, name)
        if label != self._policy.stack:
            raise EngineCallRefused(f"the container {name} is not a sandbox of this stack")
        return _Sandbox(container_id, answer)


def _name(target: Target) -> str:
    return target.path.split("/")[2]


def _identity(inspected: bytes, name: str) -> tuple[str, str]:
    """A container's id and the stack that its label names."""
    try:
        found: dict[str, Any] = json.loads(inspected)
        container_id, labels = found["Id"], found["Config"]["Labels"] or {}
        label = str(labels.get(STACK_LABEL))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise EngineUnavailable(f"The Docker engine describes {name} in no known way.") from None
    if found.get("Name") != f"/{name}" or not _ID.fullmatch(str(container_id)):
        raise EngineUnavailable(f"The Docker engine answered for {name} with something else.")
    return container_id, label


def _parameters(
    target: Target, *, must: tuple[str, ...] = (), may: tuple[str, ...] = ()
) -> Mapping[str, str]:
    for name in target.query:
        if name not in must + may:
            raise EngineCallRefused(f"the parameter {shown(name)} is not allowed")
    for name in must:
        if name not in target.query:
            raise EngineCallRefused(f"the parameter {name} is missing")
    return target.query
