"""What a harness asks for in a turn, and the answers: from the api, or at once with `auto`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts import events
from contracts.bodies import PermissionAnswer
from contracts.errors import InvalidInput, NotAskedYet, TurnLimit
from sidecar.harnesses.acp import AcpConnection
from sidecar.runs.bounds import Flow
from sidecar.runs.journal import Entry, Journal

METHOD = "session/request_permission"
TRIES = 3
# Harnesses ask for a handful at a time.
MOST_PENDING = 100
MOST_OPTIONS = 20
MOST_TITLE_CHARS = 2000
MOST_WORD_CHARS = 200


@dataclass(frozen=True)
class Pending:
    """A request that the harness waits for the answer to. `rpc_id` is the harness's own."""

    acp: AcpConnection
    rpc_id: Any
    options: list[dict[str, str]]


class Permissions:
    """One turn's. The journal knows what was asked and answered, also by a sidecar before us."""

    def __init__(self, journal: Journal, flow: Flow | None = None) -> None:
        self._journal = journal
        self._flow = flow or Flow(journal)
        self._auto = journal.request.permissions == "auto"
        self._pending: dict[str, Pending] = {}
        self._answered = {
            entry.event["permission_id"]
            for entry in journal.entries()
            if entry.event["type"] == "permission.answered"
        }
        self._withdrawn = False
        # An answer is told to the harness and journalled once, whoever gives it.
        self._answering = asyncio.Lock()

    @property
    def first_open(self) -> int | None:
        """Where in the stream the first request stands that has no answer; None if all have."""
        return min(
            (
                entry.source
                for entry in _asked(self._journal.entries())
                if entry.source is not None and entry.event["permission_id"] not in self._answered
            ),
            default=None,
        )

    async def ask(
        self, acp: AcpConnection, number: int, message: dict[str, Any], *, told: bool
    ) -> None:
        """Take a request of the harness; `told`: it is in the journal already.

        Raises: TurnLimit, when it asks for too much at a time.
        """
        permission_id = f"{acp.server_id}-{number}"
        if permission_id in self._answered:
            return
        params = _dict(message.get("params"))
        call = _dict(params.get("toolCall"))
        given = params.get("options")
        options = [_option(_dict(each)) for each in given] if isinstance(given, list) else []
        options = [each for each in options[:MOST_OPTIONS] if each["option_id"]]
        if not options or not isinstance(message.get("id"), int | str):
            # nothing that anybody could choose: told as it came, and withdrawn
            if not told:
                await self._flow.emit(events.Raw(source="acp", data=message), number)
            await acp.respond(message.get("id"), {"outcome": {"outcome": "cancelled"}})
            return
        if len(self._pending) >= MOST_PENDING:
            raise TurnLimit(f"the harness waits for more than {MOST_PENDING} permissions at a time")
        if not told:
            tool_call_id = call.get("toolCallId")
            asked = events.PermissionAsked(
                permission_id=permission_id,
                tool_call_id=tool_call_id if isinstance(tool_call_id, str) else None,
                title=_word(call.get("title"), MOST_TITLE_CHARS),
                kind=_word(call.get("kind")) or "other",
                input=call.get("rawInput"),
                options=options,
            )
            await self._flow.emit(asked, number)
        self._pending[permission_id] = Pending(acp, message.get("id"), options)
        if self._withdrawn:
            await self._settle(permission_id, PermissionAnswer(by="cancel"))
        elif self._auto:
            await self._settle(permission_id, _yes(options))

    async def answer(self, permission_id: str, answer: PermissionAnswer) -> None:
        """Hand an answer to the harness; the same when done twice.

        Raises: NotAskedYet, when the harness is not (again) known to wait for it; InvalidInput.
        """
        if permission_id in self._answered:
            return
        pending = self._pending.get(permission_id)
        if pending is None:
            raise NotAskedYet("the harness is not known to wait for this answer", hint="Try again.")
        known = [option["option_id"] for option in pending.options]
        if answer.option_id is not None and answer.option_id not in known:
            raise InvalidInput(f"there is no option {answer.option_id!r}: {', '.join(known)}")
        if not await self._settle(permission_id, answer):
            raise NotAskedYet("the harness did not take the answer", hint="Try again.")

    async def withdraw(self) -> None:
        """The turn is cancelled: nobody will answer any more."""
        self._withdrawn = True
        for permission_id in list(self._pending):
            await self._settle(permission_id, PermissionAnswer(by="cancel"))

    async def _settle(self, permission_id: str, answer: PermissionAnswer) -> bool:
        """Told first and journalled then: a sidecar that dies in between tells it again, which
        the harness does not mind, while one that was never told would wait for ever."""
        async with self._answering:
            pending = self._pending.get(permission_id)
            if pending is None:
                return permission_id in self._answered
            outcome: dict[str, Any] = {"outcome": "cancelled"}
            if answer.option_id is not None:
                outcome = {"outcome": "selected", "optionId": answer.option_id}
            for _ in range(TRIES):
                if await pending.acp.respond(pending.rpc_id, {"outcome": outcome}):
                    break
            else:
                return False
            kinds = {option["option_id"]: option["kind"] for option in pending.options}
            await self._journal.append(
                events.PermissionAnswered(
                    permission_id=permission_id,
                    option_id=answer.option_id,
                    kind=kinds.get(answer.option_id or ""),
                    by=answer.by,
                    reason=answer.reason,
                )
            )
            del self._pending[permission_id]
            self._answered.add(permission_id)
            return True


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: Any, most: int = MOST_WORD_CHARS) -> str:
    return value[:most] if isinstance(value, str) else ""


def _asked(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.event["type"] == "permission.asked"]


def _option(plain: dict[str, Any]) -> dict[str, str]:
    names = {"option_id": "optionId", "name": "name", "kind": "kind"}
    return {ours: _word(plain.get(theirs)) for ours, theirs in names.items()}


def _yes(options: Sequence[dict[str, str]]) -> PermissionAnswer:
    """`auto`: yes, once, and on record that nobody was asked."""
    chosen = next((o["option_id"] for o in options if o["kind"] == "allow_once"), None)
    return PermissionAnswer(option_id=chosen, by="auto")
