"""What a session may reach: chosen, changed for the next turn, refused when it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from api.choices import check_egress
from contracts.bodies import Capabilities, ProviderBody, Session, SessionCreate, SessionPatch
from contracts.errors import UnsupportedChoice
from tests.support import names
from tests.support.api.fault_injector import FaultyRun
from tests.support.api.serving import Api, assert_error


async def patch(api: Api, session: Session, **change: Any) -> Session:
    answer = await api.http.patch(f"/sessions/{session.id}", json=change)
    assert answer.status_code == 200, answer.text
    return Session.model_validate_json(answer.content)


async def test_a_session_reaches_nothing_unless_it_is_asked_for(api: Api) -> None:
    session = await api.new_session()
    assert (session.egress, session.egress_hosts) == ("off", [])
    turn = await api.ended(await api.start(session.id))
    assert (turn.egress, turn.egress_hosts) == ("off", [])
    assert api.injector.runs[turn.id].request.egress == "off"


async def test_hosts_are_kept_in_their_one_spelling_and_reach_the_run(api: Api) -> None:
    hosts = ["PyPI.org", "*.Bücher.example", ".c.example"]
    session = await api.new_session(egress="allow", egress_hosts=hosts)
    kept = ["pypi.org", "*.xn--bcher-kva.example", ".c.example"]
    assert (session.egress, session.egress_hosts) == ("allow", kept)
    turn = await api.ended(await api.start(session.id))
    request = api.injector.runs[turn.id].request
    assert (request.egress, request.egress_hosts) == ("allow", kept)
    started = (await api.events(session.id))[0]
    assert (started["type"], started["egress"]) == (names.TURN_STARTED, "allow")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"egress": "some"}, "egress"),
        ({"egress": "allow", "egress_hosts": ["*"]}, "egress_hosts.0"),
        ({"egress": "allow", "egress_hosts": ["ok.example", "10.0.0.1"]}, "egress_hosts.1"),
        ({"egress": "allow", "egress_hosts": ["localhost"]}, "egress_hosts.0"),
        ({"egress": "allow", "egress_hosts": ["a.example."]}, "egress_hosts.0"),
        ({"egress": "allow", "egress_hosts": ["http://a.example"]}, "egress_hosts.0"),
        ({"egress": "allow", "egress_hosts": ["a\0.example"]}, "egress_hosts.0"),
        ({"egress": "allow", "egress_hosts": ["a.example"] * 101}, "egress_hosts"),
        ({"egress": "allow", "egress_hosts": "a.example"}, "egress_hosts"),
        ({"egress": "open", "egress_hosts": ["a.example"]}, "allow"),
        ({"egress_hosts": ["a.example"]}, "allow"),
    ],
)
async def test_what_cannot_be_is_refused_with_what_to_do(
    api: Api, body: dict[str, Any], told: str
) -> None:
    error = assert_error(await api.http.post("/sessions", json=body), 400, "invalid_input")
    assert told in error["message"]
    assert error["hint"]
    session = await api.new_session()
    assert_error(await api.http.patch(f"/sessions/{session.id}", json=body), 400, "invalid_input")
    assert await patch(api, session) == session


async def test_a_change_holds_from_the_next_turn_on(api: Api) -> None:
    session = await api.new_session(egress="allow", egress_hosts=["a.example"])

    def endless(run: FaultyRun) -> None:
        run.say(names.SANDBOX_CREATING, provider="local")

    running, _ = await api.start_run(session.id, endless)
    waiting = await api.start(session.id, queue=True)
    changed = await patch(api, session, egress="open")
    assert (changed.egress, changed.egress_hosts) == ("open", ["a.example"])
    assert (await api.turn(running)).egress == "allow"
    api.injector.runs[running.id].say(names.TURN_COMPLETED)
    ended = await api.ended(waiting)
    assert ended.egress == "open"
    assert api.injector.runs[waiting.id].request.egress == "open"


async def test_hosts_can_be_changed_alone_and_survive_a_turn_without_them(api: Api) -> None:
    session = await api.new_session(egress="allow")
    assert (await patch(api, session, egress_hosts=["b.example"])).egress_hosts == ["b.example"]
    off = await patch(api, session, egress="off")
    assert (off.egress, off.egress_hosts) == ("off", ["b.example"])
    assert (await patch(api, session, egress="allow")).egress_hosts == ["b.example"]
    assert (await patch(api, session, egress_hosts=[])).egress_hosts == []


@pytest.mark.parametrize("egress", ["off", "allow", "open"])
def test_where_the_network_is_the_providers_nothing_is_promised(egress: Any) -> None:
    cloud = ProviderBody(name="modal", title="Modal", available=True, network="provider")
    able = Capabilities(
        harnesses=[], providers=[cloud], default_harness="pi", default_provider="modal"
    )
    for asked in (SessionCreate(egress=egress), SessionPatch(egress=egress)):
        with pytest.raises(UnsupportedChoice, match="modal"):
            check_egress(asked, "off", "modal", able)
    check_egress(SessionCreate(), "off", "modal", able)
