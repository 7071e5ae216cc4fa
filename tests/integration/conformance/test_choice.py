"""Which engine a sandbox gets that may not be able to mount, and what is said about it."""

from __future__ import annotations

import pytest

from contracts.errors import MountFailed
from sidecar.providers.base import Command
from sidecar.workspace.checkpoint import Checkpoint
from sidecar.workspace.geesefs import GeesefsInBox
from sidecar.workspace.in_box import Bringing, InBox
from tests.integration.conformance.conftest import SYNC_SECONDS, Subject
from tests.integration.conformance.test_durable import barrier, sh, stored
from tests.support.store_gate import Gate

ENGINES = ("checkpoint",)


def either(subject: Subject, endpoint: str) -> InBox:
    """As the sidecar has it for a cloud: mounted if that can be, carried otherwise."""
    address = subject.parts.address
    bringings: list[Bringing] = [
        GeesefsInBox(endpoint, address.bucket, "/opt/holdfast/no-such-geesefs"),
        Checkpoint(address, SYNC_SECONDS),
    ]
    return InBox(subject.bare, bringings, subject.parts, "a test")


async def test_a_sandbox_that_cannot_mount_gets_checkpoint_and_the_report_says_why(
    subject: Subject, gate: Gate
) -> None:
    provider = either(subject, gate.url)
    spec = subject.spec()
    sandbox = await provider.create(spec)
    try:
        fuse = await sandbox.exec(Command(["test", "-c", "/dev/fuse"], cwd="/"))
        why = "no geesefs" if fuse.exit_code == 0 else "no FUSE"
        assert sandbox.report.engine == "checkpoint"
        assert why in sandbox.report.why
        await sh(sandbox, "echo 1 > a")
        assert (await barrier(sandbox)).engine == "checkpoint"
        assert await stored(subject, spec, "a") == b"1\n"
    finally:
        await provider.aclose()
        await subject.end(spec.session_id)


async def test_a_store_without_an_address_is_not_mounted_and_with_no_other_way_nothing_runs(
    subject: Subject,
) -> None:
    spec = subject.spec()
    bucket = subject.parts.address.bucket
    only = InBox(subject.bare, [GeesefsInBox("", bucket)], subject.parts, "a test")
    with pytest.raises(MountFailed, match="HOLDFAST_STORE_URL"):
        await only.create(spec)
    await only.release(spec.session_id)
    assert [i async for i in subject.bare.list({"session": spec.session_id})] == []
