"""What a turn may reach, with the real harnesses in real boxes. Every host here is refused, by the
allow-list or before: no test may reach another machine."""

from __future__ import annotations

from typing import Any

import pytest

from client import Holdfast
from contracts.bodies import Session
from contracts.events import Event
from tests.e2e.conftest import RunningStack, of_type, output, run, with_each_harness
from tests.support.light_agent.tree import LIGHT

ASK = "import sys, urllib.request as r; print(sys.argv[1], r.urlopen(sys.argv[1]).status)"
# Shown at the end: of a command that prints while it runs, codex may not tell the first line.
FETCH = (
    "run: for url in https://other.example/ http://10.0.0.1/ http://127.0.0.1:8080/;"
    f' do timeout 60 python3 -c "{ASK}" $url 2>&1 | tail -n 1; done > told; cat told'
)


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("sandbox_image")
    return str(request.param)


def told(events: list[Event], host: str) -> list[Any]:
    return [event for event in of_type(events, "egress") if event.host == host]


async def allowing(hf: Holdfast, **choices: Any) -> Session:
    return await hf.sessions.create(egress="allow", egress_hosts=["allowed.example"], **choices)


@with_each_harness
async def test_a_harness_works_with_the_proxy_and_its_tools_are_told_what_is_refused(
    hf: Holdfast, harness_session: Session
) -> None:
    session = await hf.sessions.set_egress(harness_session.id, "allow", ["allowed.example"])
    events = await run(hf, session, FETCH)
    assert events[-1].type == "turn.completed"
    assert of_type(events, "turn.started")[0].egress == "allow"
    assert of_type(events, "receipt")
    said = output(events)
    assert "Tunnel connection failed: 403 other.example is not on the allow-list" in said
    assert "HTTP Error 403: 10.0.0.1 is not on the allow-list" in said
    assert "http://127.0.0.1:8080/ 200" in said, "the gateway itself is reached directly"
    [refused] = told(events, "other.example")
    assert (refused.verdict, refused.method, refused.port) == ("refused", "CONNECT", 443)
    assert "allow-list" in refused.reason
    assert [event.verdict for event in told(events, "10.0.0.1")] == ["refused"]
    assert {event.verdict for event in of_type(events, "egress")} == {"refused"}

    warm = await run(hf, session, "remember the word periwinkle")
    assert [event.rung for event in of_type(warm, "resume")] == ["warm"]

    # from the next turn on, in the same sandbox
    assert (await hf.sessions.set_egress(session.id, "off")).egress == "off"
    off = await run(hf, session, FETCH)
    assert [event.rung for event in of_type(off, "resume")] == ["native"]
    assert of_type(off, "sandbox.attached")
    assert "allow-list" not in output(off)
    assert "http://127.0.0.1:8080/ 200" in output(off)
    assert of_type(off, "egress") == [], "nothing knows of the proxy"
    recalled = await run(hf, session, "recall")
    assert [event.rung for event in of_type(recalled, "resume")] == ["warm"]
    assert "periwinkle" in "".join(event.text for event in of_type(recalled, "message"))


async def test_a_program_that_loops_does_not_fill_the_transcript(
    hf: Holdfast, provider: str
) -> None:
    session = await allowing(hf, **LIGHT, provider=provider)
    once = "lambda c: (c.request('CONNECT', 'other.example:443'), c.getresponse().read())"
    many = "[once(h.HTTPConnection('127.0.0.1', 8080)) for _ in range(300)]"
    loop = f'python3 -c "import http.client as h; once = {once}; {many}"; echo looped'
    events = await run(hf, session, f"run: {loop}")
    assert "looped" in output(events)
    found = told(events, "other.example")
    assert sum(event.connections for event in found) == 300
    assert len(found) <= 3
    assert [event.seq for event in events] == sorted(event.seq or 0 for event in events)
    await hf.sessions.delete(session.id)


async def test_without_the_proxy_a_box_has_no_way_out(hf: Holdfast, provider: str) -> None:
    session = await hf.sessions.create(**LIGHT, provider=provider, egress="allow")
    look = "run: tail -n +2 /proc/net/route | wc -l; tail -n +3 /proc/net/dev | cut -d: -f1"
    assert output(await run(hf, session, look)).split() == ["0", "lo"]
    await hf.sessions.delete(session.id)


async def test_the_command_line_chooses_and_shows_it(stack: RunningStack, hf: Holdfast) -> None:
    made = await stack.command(
        *("run", "run: curl -s -m 5 https://other.example/; true"),
        *("--harness", LIGHT["harness"], "--model", LIGHT["model"]),
        *("--egress", "allow", "--egress-host", "allowed.example"),
    )
    assert "egress allow" in made
    assert "egress refused: other.example:443: other.example is not on the allow-list" in made
    session = await hf.sessions.resolve("last")
    assert (session.egress, session.egress_hosts) == ("allow", ["allowed.example"])
    again = await stack.command("run", "say hi", "-s", str(session.id), "--egress", "off")
    assert "egress allow" not in again
    assert (await hf.sessions.get(session.id)).egress == "off"
    bad = await stack.command("new", "--egress", "allow", "--egress-host", "10.0.0.1", check=False)
    assert "egress_hosts" in bad
    await hf.sessions.delete(session.id)
