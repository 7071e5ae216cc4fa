"""Sessions in containers: what a container has, and that it can go at any moment."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator

import pytest

from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import (
    CODEX,
    RunningStack,
    let_go,
    of_type,
    output,
    run,
    wait_for_end,
    wait_for_event,
)
from tests.e2e.test_recovery import TICKS, boxes_of, crash
from tests.support.containers import docker
from tests.support.light_agent.tree import LIGHT


@pytest.fixture(autouse=True)
def _image(sandbox_image: str) -> None:
    """Everything here needs an engine and the image."""


@pytest.fixture
async def session(hf: Holdfast) -> AsyncIterator[Session]:
    made = await hf.sessions.create(**LIGHT, provider="docker")
    yield made
    await hf.sessions.delete(made.id)


async def test_a_container_has_no_capability_device_network_or_secret(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "say hello")
    (box,) = await boxes_of(hf, session)
    (shown,) = docker("inspect", box.sandbox_id)
    config, host = shown["Config"], shown["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Devices"]
    assert not host["Privileged"]
    assert host["ReadonlyRootfs"]
    assert host["NetworkMode"] == "none"
    assert list(shown["NetworkSettings"]["Networks"]) == ["none"]
    assert any(option.startswith("no-new-privileges") for option in host["SecurityOpt"])
    assert (host["PidMode"], host["IpcMode"]) == ("", "private")
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] > 0
    assert config["User"] == "1000:1000"
    writable = {mount["Destination"] for mount in shown["Mounts"] if mount["RW"]}
    assert writable == {"/session", "/run/holdfast/box", "/home/agent"}
    hidden = [stack.token]
    hidden += list(json.loads((stack.data_dir / "store.json").read_text()).values())
    hidden += [path.read_text().strip() for path in (stack.data_dir / "secrets").iterdir()]
    everything = json.dumps(shown)
    assert not [secret for secret in hidden if len(secret) >= 12 and secret in everything]


async def test_a_container_reaches_the_gateway_and_nothing_on_the_host(
    hf: Holdfast, session: Session
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        probe = f"timeout 5 bash -c '</dev/tcp/127.0.0.1/{port}' 2>&1 && echo OPEN; true"
        assert "OPEN" not in output(await run(hf, session, f"run: {probe}"))
    look = (
        "run: cut -d: -f1 /proc/net/dev | tail -n +3; cat /proc/net/route; ls /var/run/docker.sock"
    )
    seen = output(await run(hf, session, look)).split()
    assert [word for word in seen if word in ("lo", "eth0")] == ["lo"]
    assert "docker.sock:" not in seen
    assert not [word for word in seen if word.startswith("eth")]


async def test_files_and_conversation_survive_a_killed_container_and_a_change_of_provider(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    word = "periwinkle"
    await run(hf, session, f"write one to one.txt\nsay the word is {word}")
    assert (await hf.sessions.kill(session.id)).killed
    second = await run(hf, session, "recall")
    assert of_type(second, "sandbox.gone")
    assert of_type(second, "resume")[0].rung == "native"
    assert word in "".join(event.text for event in of_type(second, "message"))
    third = await run(hf, session, "read one.txt back\nwrite two to two.txt", provider="local")
    assert "one" in output(third)
    assert third[-1].type == "turn.completed"
    fourth = await run(hf, session, "read two.txt back", provider="docker", **CODEX)
    assert "two" in output(fourth)
    assert of_type(fourth, "receipt")[0].files == 2
    assert of_type(fourth, "resume")[0].rung == "handoff"
    assert len(await boxes_of(hf, session)) == 1, "a box of the other provider was left"


async def test_a_sidecar_that_dies_is_followed_by_one_that_goes_on_in_the_container(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, f"say one\nrun: {TICKS}\nsay two")
    await wait_for_event(hf, turn, "tool.call")
    await crash(stack, "sidecar")
    await let_go(hf, session)
    await wait_for_event(hf, turn, "turn.completed")
    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert len(of_type(events, "run.adopted")) == 1
    assert len(of_type(events, "tool.result")) == 1, "an event was lost or doubled"
    assert await stack.stored(session, "ticks.txt") == b"ticked\n"
    assert len(await boxes_of(hf, session)) == 1, "a rival sandbox"


async def test_a_container_that_dies_in_a_turn_interrupts_it_with_a_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    turn = await hf.turns.start(session.id, "write a to a.txt\nwait 60 seconds")
    await wait_for_event(hf, turn, "tool.result")
    (box,) = await boxes_of(hf, session)
    docker("kill", box.sandbox_id)
    assert (await wait_for_end(hf, turn)).type == "turn.interrupted"
    ended = await hf.turns.get(session.id, turn.id)
    assert ended.receipt is not None
    assert ended.receipt.files == 1
    assert (await run(hf, session, "read a.txt back"))[-1].type == "turn.completed"
    assert len(docker("ps", "-aq", "--filter", f"label=holdfast.session={session.id}")) == 1


async def test_a_process_that_writes_on_lives_through_the_receipt(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    """It keeps its file open: the receipt has the bytes of its moment, the next one the later."""
    writer = "nohup sh -c 'while sleep 0.05; do echo x; done' > grow.log 2>/dev/null &"
    first = await run(hf, session, f"run: {writer}")
    assert first[-1].type == "turn.completed"
    early = of_type(first, "receipt")[0].bytes
    second = await run(hf, session, "say still here")
    assert of_type(second, "receipt")[0].bytes > early
    stored = await stack.stored(session, "grow.log")
    assert stored is not None
    assert len(stored) >= of_type(second, "receipt")[0].bytes - len("still here")


@pytest.mark.parametrize("harness", ["claude", "codex", "opencode"])
async def test_in_a_container_too_a_file_appears_only_after_it_is_allowed(
    stack: RunningStack, hf: Holdfast, harness: str
) -> None:
    session = await hf.sessions.create(harness=harness, provider="docker", permissions="ask")
    for kind, stored in (("reject_once", None), ("allow_once", b"hello")):
        turn = await hf.turns.start(session.id, "ask to run: printf hello > a.txt")
        await wait_for_event(hf, turn, "permission.asked")
        [asked] = await hf.permissions.list(session.id, pending=True)
        option = next(each.option_id for each in asked.options if each.kind == kind)
        await hf.permissions.answer(session.id, asked.permission_id, option)
        assert (await wait_for_end(hf, turn)).type == "turn.completed"
        assert await stack.stored(session, "a.txt") == stored
    await hf.sessions.delete(session.id)


async def test_files_of_a_container_are_changed_through_its_mount(
    stack: RunningStack, hf: Holdfast, session: Session
) -> None:
    await run(hf, session, "write one to a.txt")
    assert (await hf.files.put(session.id, "d/b.txt", b"two\n")).via == "mount"
    await hf.files.move(session.id, "a.txt", "d/a.txt")
    events = await run(hf, session, "run: cat d/b.txt; echo three >> d/b.txt; ls d")
    assert output(events).split() == ["two", "a.txt", "b.txt"]
    assert await stack.stored(session, "d/b.txt") == b"two\nthree\n"
    destroyed = await hf.sessions.destroy(session.id)
    assert destroyed.lived
    assert await boxes_of(hf, session) == []
