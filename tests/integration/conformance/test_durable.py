"""A workspace outlives its sandbox, by every engine on every provider."""

from __future__ import annotations

import asyncio
from typing import cast
from uuid import uuid4

import pytest

from contracts.errors import NotDurable
from sidecar.providers.base import Command, Sandbox, SandboxSpec
from sidecar.workspace.barrier import Proof
from sidecar.workspace.engine import Durable, DurableSandbox
from sidecar.workspace.geesefs import KEY_FILE
from sidecar.workspace.in_box import InBox
from tests.integration.conformance.conftest import Make, Subject, again

ENGINES = ("geesefs", "checkpoint")
TURN = str(uuid4())
# With whole seconds: there are engines that keep no more (`mtime_grain_ns`).
EVERY_KIND = (
    "echo one > a; mkdir -p d/e empty; echo two > d/e/b; chmod 755 a; ln -s d/e/b link;"
    ": > nothing; head -c 6000000 /dev/urandom > large;"
    "find . -mindepth 1 -depth -exec touch -h -d '2020-01-02 03:04:05' {} +; sync"
)


async def sh(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-ec", script]))
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


def durable(sandbox: Sandbox) -> DurableSandbox:
    return cast("DurableSandbox", sandbox)


async def barrier(sandbox: Sandbox, epoch: int = 1) -> Proof:
    each = durable(sandbox)
    async with each.frozen():
        return await each.workspace.barrier(TURN, epoch, each.held)


async def stored(subject: Subject, spec: SandboxSpec, path: str) -> bytes | None:
    found = await subject.parts.store.get(f"{spec.session_id}/{path}")
    return None if found is None else found[0]


async def test_the_engine_that_was_asked_for_serves(subject: Subject, sandbox: Sandbox) -> None:
    assert subject.durable.choice.name == subject.engine
    assert durable(sandbox).report.engine == subject.engine
    assert (await barrier(sandbox)).engine == subject.engine


async def test_the_next_sandbox_has_the_same_files_by_the_hash_of_the_manifest(
    subject: Subject, make: Make
) -> None:
    spec = subject.spec()
    first = await make(spec)
    await sh(first, EVERY_KIND)
    digest = await sh(first, "sha256sum large")
    proof = await barrier(first)
    assert (proof.files, proof.lost) == (4, "")
    assert await stored(subject, spec, "d/e/b") == b"two\n"
    assert await subject.provider.destroy(first.id)
    await subject.durable.release(spec.session_id)

    second = await make(again(spec, 2))
    assert second.id != first.id
    assert await sh(second, "cat a link; sha256sum large") == f"one\ntwo\n{digest}"
    shown = "stat -c '%a %Y' a; readlink link; test -d empty; test -f nothing; test ! -s nothing"
    assert await sh(second, shown) == "755 1577934245\nd/e/b\n"
    assert (await barrier(second)).manifest_sha256 == proof.manifest_sha256
    await sh(second, "echo more >> a; sync")
    assert (await barrier(second)).manifest_sha256 != proof.manifest_sha256


async def test_the_next_sidecar_goes_on_with_the_files_of_a_living_sandbox(
    subject: Subject, make: Make
) -> None:
    spec = subject.spec()
    sandbox = await make(spec)
    await sh(sandbox, "echo 1 > a; sync")
    await barrier(sandbox)
    await sh(sandbox, "echo 2 > a; echo new > b; sync")
    async with subject.another() as later:
        adopted = await later.attach(sandbox.id)
        assert await sh(adopted, "cat a b") == "2\nnew\n"
        assert (await barrier(adopted)).files == 2
    assert await stored(subject, spec, "a") == b"2\n"


async def test_whoever_had_the_session_before_can_store_nothing_more(
    subject: Subject, make: Make
) -> None:
    if not isinstance(subject.provider, InBox):
        name = subject.provider.name
        pytest.skip(f"{name} declares mount=host: the next one adopts the mount of this host")
    spec = subject.spec()
    zombie = await make(spec)
    await sh(zombie, "echo 1 > a; sync")
    await barrier(zombie)
    async with subject.another() as later:
        taken = cast("Durable", later)
        successor = await taken.create(again(spec, 2))
        await zombie.exec(Command(["sh", "-c", "echo late > a; echo late > b; sync"], timeout=5))
        with pytest.raises(NotDurable):
            async with asyncio.timeout(60):
                await durable(zombie).workspace.barrier(TURN, 1, zombie.held)
        assert await stored(subject, spec, "a") == b"1\n"
        assert await stored(subject, spec, "b") is None
        assert await sh(successor, "cat a; echo 2 > a; sync") == "1\n"
        assert (await barrier(successor, 2)).files == 1
        assert await stored(subject, spec, "a") == b"2\n"
        await taken.destroy(successor.id)


async def test_of_a_sandbox_that_dies_the_receipt_has_what_the_store_has(
    subject: Subject, make: Make
) -> None:
    spec = subject.spec()
    sandbox = await make(spec)
    await sh(sandbox, "echo early > early; sync")
    await durable(sandbox).workspace.sync()
    await sh(sandbox, "echo late > late")
    await subject.bare.destroy(sandbox.id)
    left = await subject.durable.left_behind(spec.session_id)
    proof = await left.barrier(TURN, 1)
    assert await stored(subject, spec, "early") == b"early\n"
    if isinstance(subject.provider, InBox):
        assert "lost" in proof.lost
        listed = sorted(await subject.parts.store.list(f"{spec.session_id}/"))
        assert proof.files == len(listed)
    else:
        # the mount outlives the sandbox, with all that was written
        assert (proof.lost, proof.files) == ("", 2)
    successor = await make(again(spec, 2))
    assert "early" in await sh(successor, "ls")


async def test_a_key_of_the_store_is_in_the_sandbox_only_where_it_mounts_by_itself(
    subject: Subject, sandbox: Sandbox
) -> None:
    """Then it is the session's own, in a file that nobody else can read, and on no command line."""
    look = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; true"
    seen = await sh(sandbox, look)
    assert "HOME=/home/agent" in seen, "the search is blind"
    address = subject.parts.address
    assert address.secret_key not in seen
    assert address.access_key not in seen
    assert "AKIA" not in seen
    file = await sandbox.exec(Command(["stat", "-c", "%a", KEY_FILE], cwd="/"))
    if subject.engine == "geesefs" and isinstance(subject.provider, InBox):
        assert file.stdout == b"600\n"
        assert address.secret_key.encode() not in await sandbox.read(KEY_FILE)
    else:
        assert file.exit_code != 0
