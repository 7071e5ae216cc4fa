"""Requests of runs."""

from __future__ import annotations

from uuid import UUID, uuid4

from contracts.bodies import RunRequest


def request_of(session_id: UUID) -> RunRequest:
    return RunRequest(
        turn_id=uuid4(),
        session_id=session_id,
        epoch=1,
        prompt="p",
        harness="pi",
        provider="local",
    )
