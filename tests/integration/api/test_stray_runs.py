"""Runs that go on in the sidecar although their turn has ended in the api."""

from __future__ import annotations

from api.db.pool import open_database
from api.sidecar import open_sidecar
from api.stray_runs import StrayRuns
from tests.support import names
from tests.support.api.fault_injector import FaultyRun
from tests.support.api.serving import Api
from tests.support.runs import request_of


async def test_a_run_whose_turn_has_ended_is_cancelled_and_no_other(api: Api) -> None:
    api.injector.runs.clear()
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.say(names.SANDBOX_CREATING, provider="local")

    turn, run = await api.start_run(session.id, plan)
    stray = FaultyRun(request_of(session.id))
    api.injector.runs[stray.request.turn_id] = stray
    url = api.settings.database_url.get_secret_value()
    async with open_database(url) as database, open_sidecar(api.settings) as sidecar:
        strays = StrayRuns(database, sidecar, 3600.0)
        assert await strays.cancel_all() == 1
        assert (stray.cancels, run.cancels) == (1, 0)
        assert await strays.cancel_all() == 0
    run.say(names.TURN_COMPLETED)
    assert (await api.ended(turn)).state == "completed"
