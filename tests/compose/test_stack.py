"""docker-compose.yml as it stands: comes up, proves durability, is restarted, goes, comes back."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from uuid import UUID

import pytest

from client import Holdfast
from contracts.errors import Unauthenticated
from tests.compose.running import Compose, compose_project
from tests.e2e.conftest import of_type, output, run, wait_for_end, wait_for_event

pytestmark = pytest.mark.xdist_group("compose")

# A command that goes on until the test has seen enough; bounded, should the test be gone.
UNTIL_LET_GO = "for i in $(seq 1200); do test -e /tmp/go && break; sleep 0.1; done"
SERVICES = ("api", "sidecar", "gateway", "engine-proxy", "box-host", "postgres", "seaweedfs")
REACH = 'timeout 5 bash -c "</dev/tcp/$to" 2>/dev/null && echo $to open || echo $to closed'
CLOUDS = ("e2b", "daytona", "modal")


async def sandboxes_of(stack: Compose, session: UUID) -> list[str]:
    wanted = f"label=holdfast.session={session}"
    return (await stack.run("docker", "ps", "-aq", "--filter", wanted)).split()


async def boxes_of(stack: Compose, cloud: str) -> list[str]:
    """Of this stack's emulator: their names say the process that made them."""
    emulator = (await stack.compose("ps", "-q", f"emulated-{cloud}")).strip()
    pid = (await stack.run("docker", "inspect", "-f", "{{.State.Pid}}", emulator)).strip()
    listed = ("ps", "-a", "--filter", "label=holdfast.emulator", "--format", "{{.Names}}")
    names = (await stack.run("docker", *listed)).split()
    return [name for name in names if name.split(".")[2].split("-")[2] == pid]


async def until_available(hf: Holdfast, provider: str) -> None:
    """What was restarted may be asked for again: a provider's trouble is remembered for a while."""
    async with asyncio.timeout(60):
        while next(
            each.reason for each in (await hf.capabilities()).providers if each.name == provider
        ):
            await asyncio.sleep(0.2)


@pytest.mark.timeout(900)
async def test_every_harness_passes_on_local_and_docker(stack: Compose, hf: Holdfast) -> None:
    store = await stack.address("seaweedfs", "store")
    env = {
        **stack.env,
        "HOLDFAST_URL": stack.url,
        "HOLDFAST_TOKEN": await stack.secret("holdfast_api_token"),
        "HOLDFAST_S3_ENDPOINT": f"http://{store}:8333",
        "HOLDFAST_S3_ACCESS_KEY": await stack.secret("holdfast_s3_access_key"),
        "HOLDFAST_S3_SECRET_KEY": await stack.secret("holdfast_s3_secret_key"),
    }
    both = ("--providers", "local,docker", "--require", "local,docker")
    said = await Compose(stack.project, env).run(
        sys.executable, "matrix_test.py", *both, within=850
    )
    assert len(re.findall(r"\bPASS\b", said)) == 8, said
    assert [box for box in (await hf.sandboxes()).sandboxes if box.provider == "docker"] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_that_is_restarted_in_a_turn_loses_nothing(
    stack: Compose, hf: Holdfast, service: str
) -> None:
    session = await hf.sessions.create(harness="pi", provider="docker")
    prompt = f"write early to early.txt\nrun: {UNTIL_LET_GO}\nsay done"
    turn = await hf.turns.start(session.id, prompt)
    await wait_for_event(hf, turn, "tool.result")
    await stack.compose("restart", service)
    async with stack.client() as again:
        await until_available(again, "docker")
    if (await hf.turns.get(session.id, turn.id)).state == "running":
        [sandbox] = await sandboxes_of(stack, session.id)
        await stack.run("docker", "exec", sandbox, "touch", "/tmp/go")
    end = await wait_for_end(hf, turn)
    # a mount that goes under a turn may cost the turn, never what it has done
    allowed = (
        {"turn.completed", "turn.interrupted"} if service == "box-host" else {"turn.completed"}
    )
    assert end.type in allowed, end
    assert (await hf.turns.get(session.id, turn.id)).receipt is not None
    events = [event async for event in hf.events(session.id, follow=False)]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    calls = [event.tool_call_id for event in of_type(events, "tool.call")]
    assert len(calls) == len(set(calls)), "an event is there twice"
    after = await run(hf, session, "read early.txt back")
    assert after[-1].type == "turn.completed", after[-1]
    assert "early" in output(after)
    assert len(await sandboxes_of(stack, session.id)) == 1, "a rival sandbox"
    await hf.sessions.delete(session.id)
    assert await sandboxes_of(stack, session.id) == []


@pytest.mark.timeout(300)
async def test_a_stack_that_went_and_came_back_has_all_its_sessions(
    stack: Compose, hf: Holdfast
) -> None:
    """Also where it comes back with another profile."""
    made = {
        provider: await hf.sessions.create(harness="pi", provider=provider)
        for provider in ("local", "docker")
    }
    for session in made.values():
        await run(hf, session, "write kept to kept.txt\nsay the word is periwinkle")
    await stack.down()
    assert await stack.left("container", "-a") == []
    await stack.come_back_emulated()
    async with stack.client() as again:
        for session in made.values():
            events = await run(again, session, "recall\nread kept.txt back")
            assert events[-1].type == "turn.completed"
            assert of_type(events, "resume")[0].rung == "native"
            assert "periwinkle" in "".join(event.text for event in of_type(events, "message"))
            assert "kept" in output(events)


@pytest.mark.timeout(900)
async def test_a_session_moves_over_every_emulated_cloud_and_leaves_no_box(
    emulated: Compose,
) -> None:
    async with emulated.client() as hf:
        told = {each.name: each for each in (await hf.capabilities()).providers}
        assert {name: told[name].reason for name in CLOUDS} == dict.fromkeys(CLOUDS, "")
        session = await hf.sessions.create(harness="pi", provider=CLOUDS[0])
        for number, cloud in enumerate(CLOUDS):
            prompt = f"run: echo {cloud} >> been.txt; cat been.txt\nsay done"
            events = await run(hf, session, prompt, provider=cloud)
            assert events[-1].type == "turn.completed", events[-1]
            assert output(events).split() == list(CLOUDS[: number + 1])
            assert len(await boxes_of(emulated, cloud)) == 1, "it ran elsewhere"
        await hf.sessions.delete(session.id)
        for cloud in CLOUDS:
            assert await boxes_of(emulated, cloud) == []


@pytest.mark.timeout(300)
async def test_a_backup_comes_back_in_a_project_that_has_never_been_up(
    stack: Compose, hf: Holdfast, tmp_path: Path
) -> None:
    """With the commands of docs/operations.md."""
    session = await hf.sessions.create(harness="pi", provider="local", title="Kept")
    await run(hf, session, "write kept to kept.txt")
    told = [event async for event in hf.events(session.id, follow=False)]
    backup = tmp_path / "monday.tar"
    program = ("/opt/venv/bin/python", "-P", "-m", "api.backup")
    with backup.open("wb") as file:
        await stack.compose("exec", "-T", "api", *program, "create", "-", stdout=file)
    with backup.open("rb") as file:
        await stack.compose("exec", "-T", "api", *program, "check", "-", stdin=file)
    async with compose_project() as other:
        await other.compose("up", "-d", "postgres", "buckets")
        restore = ("run", "--rm", "-T", "--no-deps", "api", "-m", "api.backup", "restore", "-")
        with backup.open("rb") as file:
            await other.compose(*restore, stdin=file)
        await other.up()
        async with other.client() as there:
            found = [event async for event in there.events(session.id, follow=False)]
            assert found == told
            assert await there.files.read(session.id, "kept.txt") == b"kept"
            events = await run(there, session, "read kept.txt back")
            assert of_type(events, "workspace.verified")[0].changed == []
            assert "kept" in output(events)
    await hf.sessions.delete(session.id)


async def test_a_rotated_token_is_good_at_once_and_the_old_one_no_more(
    stack: Compose, hf: Holdfast
) -> None:
    said = await stack.run("scripts/compose-token-rotate")
    with pytest.raises(Unauthenticated):
        await hf.capabilities()
    async with stack.client() as again:
        await again.capabilities()
    assert f"token={await stack.secret('holdfast_api_token')}" in said


async def test_no_service_can_be_reached_from_a_sandbox_by_its_address(
    stack: Compose, hf: Holdfast
) -> None:
    """Neither by the name that the services know each other by."""
    session = await hf.sessions.create(harness="pi", provider="docker")
    addresses = {
        "seaweedfs": [await stack.address("seaweedfs", "store"), "8333", "8888", "9333"],
        "postgres": [await stack.address("postgres", "database"), "5432"],
        "api": [await stack.address("api", "front"), "8000"],
    }
    targets = [
        f"{host}/{port}"
        for name, (address, *ports) in addresses.items()
        for port in ports
        for host in (address, name)
    ]
    agent = "127.0.0.1/8080"  # it is there: what finds it closed as well is blind
    probe = f"for to in {' '.join([*targets, agent])}; do ({REACH}) & done; wait"
    said = output(await run(hf, session, f"run: {probe}"))
    found = dict(line.split() for line in said.splitlines() if re.match(r"[\w.-]+/\d+ ", line))
    assert found == {**dict.fromkeys(targets, "closed"), agent: "open"}, said
    await hf.sessions.delete(session.id)
