"""Records of a session outlive the gateway process."""

from __future__ import annotations

import json
import signal
from uuid import uuid4

from sidecar.gateway import records
from tests.support.gateway import client_of, gateway_process


async def test_terms_are_told_to_the_gateway_and_outlive_it() -> None:
    session_id = uuid4()
    async with gateway_process() as running:
        async with client_of(running.control) as client:
            terms = {"budget": {"tokens": 5}}
            answer = await client.put(f"/sessions/{session_id}", json=terms)
        assert answer.status_code == 200, answer.text
        await running.open(session_id)
        await running.end(signal.SIGKILL)
        await running.start()
        log = running.sockets / records.DIRECTORY / f"{session_id}.ndjson"
        state = json.loads(log.read_text().splitlines()[-1])["state"]
        assert state["terms"] == {"budget": {"tokens": 5}}
