"""POST /invoke: send, steer, cancel and attach in one call."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from api.auth import about, caller_of
from api.follow import Span, ndjson_stream
from api.routes.events import NDJSON
from api.services import Services, Use
from api.streamed import OwnedStream
from contracts.bodies import Choices, InvokeRequest, Session, SessionCreate
from contracts.errors import InvalidInput, NoTurnRunning, TurnRunning

router = APIRouter(tags=["invoke"])

# How long steering waits for the cancelled turn to end.
STEER_WITHIN = 60.0


@router.post(
    "/invoke",
    response_class=StreamingResponse,
    responses={200: {"description": "The turn's events.", "content": {NDJSON: {}}}},
)
async def invoke(body: InvokeRequest, services: Use, request: Request) -> StreamingResponse:
    """Stream one turn's events as NDJSON until its end; hanging up detaches, the turn goes on.

    With a prompt: send (`force` false; 409 when a turn runs) or steer (`force` true: cancel the
    running turn first). Without one: cancel (`force` false) or attach (`force` true).
    """
    about(request, body.session_id)
    prompt = last_prompt(body)
    if prompt is not None:
        services.turns.check_prompt(prompt)  # before a session is made for it
        session = await _session(body, services, caller_of(request).name)
        about(request, session.id)
        if body.force:
            await _make_way(session, services)
        turn = await services.turns.start(session.id, prompt, body.data.parameters)
        return _stream(services, session.id, turn.id, turn.first_seq - 1)
    if body.session_id is None:
        raise InvalidInput(
            "There is neither a prompt nor a session.",
            hint="Send data.inputs.messages to start, or session_id to cancel or attach.",
        )
    session = await services.sessions.get(body.session_id)
    if session.running_turn is None:
        raise NoTurnRunning("No turn is running in this session.", hint="Send a prompt.")
    if body.force:
        turn = await services.turns.get(session.id, session.running_turn)
        return _stream(services, session.id, turn.id, turn.first_seq - 1)
    turn = await services.turns.cancel(session.id, session.running_turn)
    return _stream(services, session.id, turn.id, turn.last_seq)


async def _session(body: InvokeRequest, services: Services, made_by: str) -> Session:
    if body.session_id is not None:
        return await services.sessions.get(body.session_id)
    asked = body.data.parameters.model_dump(include=set(Choices.model_fields))
    return await services.sessions.create(SessionCreate(**asked), made_by)


async def _make_way(session: Session, services: Services) -> None:
    """Raises: TurnRunning when the running turn does not end in time."""
    running = session.running_turn
    if running is None:
        return
    try:
        await services.turns.cancel(session.id, running)
    except NoTurnRunning:
        return
    if not await services.turns.wait_for_end(session.id, running, STEER_WITHIN):
        raise TurnRunning(
            f"The running turn did not end within {STEER_WITHIN:.0f} s of its cancel.",
            hint="Try again, or kill the sandbox.",
            turn_id=str(running),
        )


def _stream(services: Services, session_id: UUID, turn_id: UUID, after: int) -> StreamingResponse:
    span = Span(session_id, after, until_end_of=turn_id)
    place = AsyncExitStack()
    place.enter_context(services.followers.one())
    return OwnedStream(
        ndjson_stream(services.database, services.listener, span),
        place,
        media_type=NDJSON,
        headers={"X-Session-Id": str(session_id), "X-Turn-Id": str(turn_id)},
    )


def last_prompt(body: InvokeRequest) -> str | None:
    """The text of the last message of the user; None when there is none.

    Raises: InvalidInput when its content is neither text nor a list of parts.
    """
    for message in reversed(body.data.inputs.messages):
        if message.role == "user":
            return _text(message.content) or None
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        text = content
    elif isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text", "") for part in content if part.get("type") == "text"]
        if not all(isinstance(part, str) for part in texts):
            raise _not_text()
        text = "\n".join(texts)
    else:
        raise _not_text()
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _not_text() from None
    return text


def _not_text() -> InvalidInput:
    return InvalidInput(
        "The content of the message is not text.",
        hint='Send a string, or parts such as {"type": "text", "text": "…"}.',
    )
