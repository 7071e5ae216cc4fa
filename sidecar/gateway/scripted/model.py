"""The model itself: a conversation in, a reply out; no state, no clock, no input or output.

Every request carries the whole conversation, so the script of the newest prompt is played again
from its start each time, fed with the tool results that are there; it stops at the first call
without a result. That call, with what was said since the last result, is the reply.
"""

from __future__ import annotations

from sidecar.gateway.scripted.conversation import Conversation, Returned, newest_turn
from sidecar.gateway.scripted.language import PHRASES, Unknown, parse
from sidecar.gateway.scripted.reply import Call, Failure, Part, Reply, Text
from sidecar.gateway.scripted.script import Script, bounded, play
from sidecar.gateway.scripted.side import side_reply


def answer(conversation: Conversation) -> Reply | Failure:
    side = side_reply(conversation)
    if side is not None:
        return side
    turn = newest_turn(conversation)
    steps = parse(turn.prompt)
    if all(isinstance(step, Unknown) for step in steps):
        return Reply((Text(_introduction(turn.prompt)),))
    return _replay(play(steps, turn.history, conversation.tools), turn.results)


def _replay(script: Script, results: tuple[Returned, ...]) -> Reply | Failure:
    pending = iter(results)
    said: list[Part] = []
    result: Returned | None = None
    while True:
        try:
            part = script.send(result)
        except StopIteration:
            return Reply(tuple(said))
        result = None
        if isinstance(part, Failure):
            return part
        if isinstance(part, Call):
            result = next(pending, None)
            if result is None:
                return Reply((*said, part))
            said.clear()
        else:
            said.append(part)


def _introduction(prompt: str) -> str:
    heard = f'You wrote: "{bounded(prompt, 300)}". ' if prompt else ""
    phrases = "\n".join(f"- {phrase}" for phrase in PHRASES)
    return (
        f"I am the scripted model: no key is set, so no real model is asked. {heard}"
        f"I found nothing in it that I can do. I understand these phrases, one a line, "
        f"or joined by `;` or `then`:\n{phrases}"
    )
