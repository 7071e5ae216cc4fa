"""A workspace that only its sandbox can reach, through boxd."""

from __future__ import annotations

import json
from typing import Any

from sidecar.boxhost import answers
from sidecar.boxhost.contract import MountSick
from sidecar.providers.boxd import Link, NoAnswer
from sidecar.providers.boxd_answers import Refused

GRACE_SECONDS = 30


class BoxdFiles:
    """Files. Raises, in every call: MountSick; a sandbox that cannot be reached is `unreachable`,
    and says nothing about its workspace."""

    def __init__(self, boxd: Link) -> None:
        self._boxd = boxd

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask("walk", op, bound, arguments)

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask("mend", op, bound, arguments)

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask("edit", op, bound, arguments)

    async def _ask(
        self, tool: str, op: str, bound: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        line = json.dumps({"op": op, **arguments}).encode()
        try:
            _, answer = await self._boxd.call(tool, line, bound=bound + GRACE_SECONDS, within=bound)
        except Refused as refused:
            raise MountSick(refused.kind or "died", f"{op}: {refused}") from refused
        except NoAnswer as error:
            raise MountSick("unreachable", f"{op}: {error}") from error
        return answers.parse(tool, op, arguments, answer)

    async def held(self) -> set[int]:
        return set()

    async def close(self) -> None:
        """boxd keeps one walker, and takes a new one when it has to."""
