"""How many sessions one token may have made."""

from __future__ import annotations

import asyncio

from api.settings import Settings
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import (
    assert_error,
    client_of,
    make_settings,
    new_token,
    serve_api,
    served,
)
from tests.support.names import env_name
from tests.support.services import SeaweedFS

LIMIT = 5


async def test_a_token_makes_so_many_sessions_and_no_more_and_others_are_not_counted(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(
            await new_database(), store_service, sidecar_url, sessions_per_token=LIMIT
        )
        async with serve_api(settings, injector) as api:
            await api.new_session()
            async with client_of(api, await new_token(api, "busy", "run")) as busy:
                # all at once: none slips through between another's count and its insert
                asked = [busy.post("/sessions", json={}) for _ in range(3 * LIMIT)]
                answers = await asyncio.gather(*asked)
                made = [each.json() for each in answers if each.status_code == 201]
                assert len(made) == LIMIT
                assert {each["made_by"] for each in made} == {"busy"}
                for answer in answers:
                    if answer.status_code != 201:
                        error = assert_error(answer, 429, "too_many_sessions")
                        assert env_name(Settings, "sessions_per_token") in error["hint"]
                        assert error["limit"] == LIMIT
                data = {"inputs": {"messages": [{"role": "user", "content": "go"}]}}
                answer = await busy.post("/invoke", json={"data": data})
                assert_error(answer, 429, "too_many_sessions")
                # one that is there can be used, and one that is gone makes room
                answer = await busy.patch(f"/sessions/{made[0]['id']}", json={"archived": True})
                assert answer.status_code == 200
                assert_error(await busy.post("/sessions", json={}), 429, "too_many_sessions")
                assert (await busy.delete(f"/sessions/{made[0]['id']}")).status_code == 200
                assert (await busy.post("/sessions", json={})).status_code == 201
            assert (await api.new_session()).made_by == "owner"
