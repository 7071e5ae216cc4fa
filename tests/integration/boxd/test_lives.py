"""boxd among a cloud's own processes: it freezes what it started, and cleans up after itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from emulators.boxes import Box, BoxProcess
from sidecar.providers.boxd import NoAnswer
from sidecar.providers.cloud import BOXD_COMMAND
from tests.integration.boxd.conftest import Boxd, put_token, started
from tests.support.emulators.in_box import WITHIN, run, wait

COUNT = 'n=0; while :; do n=$((n+1)); echo $n > "$1.new"; mv "$1.new" "$1"; sleep 0.02; done'
A_FEW = 5


@pytest.fixture
async def boxd(other_box: Box) -> AsyncIterator[Boxd]:
    async with started(other_box) as running:
        yield running


async def count_by_boxd(boxd: Boxd, path: str) -> None:
    argv = ["sh", "-c", COUNT, "sh", path]
    await boxd.link.call("spawn", argv=argv, cwd="/", env={})


async def count_by_the_cloud(box: Box, path: str) -> BoxProcess:
    """Started by the provider's own means, as its agent in the box would."""
    return await box.exec(["sh", "-c", COUNT, "sh", path])


async def counted(box: Box, path: str) -> int:
    return int((await run(box, "sh", "-c", f"cat {path} 2>/dev/null || echo 0")).stdout)


async def until_counted(box: Box, path: str, least: int) -> None:
    async with asyncio.timeout(WITHIN):
        while await counted(box, path) < least:
            await asyncio.sleep(0.02)


async def test_freezing_stops_what_it_started_and_passes_over_the_clouds_own(boxd: Boxd) -> None:
    ours, theirs = "/tmp/ours", "/tmp/theirs"
    await count_by_boxd(boxd, ours)
    cloud = await count_by_the_cloud(boxd.box, theirs)
    await until_counted(boxd.box, ours, A_FEW)
    await boxd.link.freeze(WITHIN)
    stood, went = await counted(boxd.box, ours), await counted(boxd.box, theirs)
    await until_counted(boxd.box, theirs, went + 10 * A_FEW)
    assert await counted(boxd.box, ours) == stood
    # what is asked of a frozen sandbox is done
    assert await boxd.exec("echo", "here") == (0, b"here\n")
    assert await counted(boxd.box, ours) == stood
    await boxd.link.thaw()
    await until_counted(boxd.box, ours, stood + A_FEW)
    await cloud.kill()


async def test_a_freeze_ends_by_itself(boxd: Boxd) -> None:
    """Who froze may have died."""
    path = "/tmp/counter"
    await count_by_boxd(boxd, path)
    await until_counted(boxd.box, path, A_FEW)
    await boxd.link.call("freeze_for", seconds=3)
    stood = await counted(boxd.box, path)
    assert await counted(boxd.box, path) == stood
    await until_counted(boxd.box, path, stood + A_FEW)
    head, _ = await boxd.link.call("thaw")
    assert head["was_frozen"] is False


async def test_a_second_freeze_goes_on_from_the_first(boxd: Boxd) -> None:
    path = "/tmp/counter"
    await count_by_boxd(boxd, path)
    await until_counted(boxd.box, path, A_FEW)
    await boxd.link.call("freeze_for", seconds=0.2)
    await boxd.link.call("freeze_for", seconds=600)
    stood = await counted(boxd.box, path)
    bystander = await count_by_the_cloud(boxd.box, "/tmp/bystander")
    await until_counted(boxd.box, "/tmp/bystander", 10 * A_FEW)
    await bystander.kill()
    assert await counted(boxd.box, path) == stood, "the first one's end let it go"
    head, _ = await boxd.link.call("thaw")
    assert head["was_frozen"] is True
    await until_counted(boxd.box, path, stood + A_FEW)


async def test_what_a_dead_boxd_left_is_ended_at_the_next_start(boxd: Boxd) -> None:
    box, cloud = boxd.box, await count_by_the_cloud(boxd.box, "/tmp/theirs")
    await count_by_boxd(boxd, "/tmp/ours")
    daemon = "setsid sh -c 'exec sleep 4321' </dev/null >/dev/null 2>&1 & sleep 4322"
    await boxd.link.call("spawn", argv=["sh", "-c", daemon], cwd="/", env={})
    async with asyncio.timeout(WITHIN):
        while not {"sleep 4321", "sleep 4322"} <= set(await boxd.running()):
            await asyncio.sleep(0.02)
    await boxd.link.freeze(WITHIN)  # what is stopped must not stay so
    await boxd.kill()
    with pytest.raises(NoAnswer):
        await boxd.link.call("mounted")
    assert await naps(box) == 2, "it died with its boxd: there is nothing to be ended"
    async with started(box) as second:
        assert await naps(box) == 0
        assert await second.running() == []
        went = await counted(box, "/tmp/theirs")
        await until_counted(box, "/tmp/theirs", went + A_FEW)
    await cloud.kill()


async def naps(box: Box) -> int:
    """How many of them live, and are not just to be reaped."""
    shown = (await run(box, "ps", "-eo", "stat=,args=", user="root")).stdout.splitlines()
    lines = [line.split(maxsplit=1) for line in shown]
    return sum(state[0] != "Z" and args in ("sleep 4321", "sleep 4322") for state, args in lines)


async def test_a_second_boxd_ends_at_once_and_nothing_that_the_first_one_started(
    boxd: Boxd,
) -> None:
    """One that is slow to answer is taken for dead."""
    await boxd.link.call("spawn", argv=["sleep", "4321"], cwd="/", env={})
    await put_token(boxd.box, "another", "agent")
    second = await boxd.box.exec(BOXD_COMMAND)
    assert await wait(second) != 0
    assert await naps(boxd.box) == 1
    assert await boxd.exec("echo", "here") == (0, b"here\n")


async def test_a_walk_that_is_given_up_disturbs_no_other_call(
    boxd: Boxd, sandbox_image: str
) -> None:
    """The next command's output comes by a pipe that has the number of the walker's."""
    await boxd.exec("mkdir", "-p", "/session/workspace")
    scan = json.dumps({"op": "scan", "token": "", "held": []}).encode()
    for _ in range(3):
        _, answer = await boxd.link.call("walk", scan, within=WITHIN)
        assert "ok" in json.loads(answer)
        await boxd.link.call("unmount", gently=False)  # it lets the walker go
        for _ in range(3):
            assert await boxd.exec("echo", "here") == (0, b"here\n")
