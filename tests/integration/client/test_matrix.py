"""The matrix passes for a stack that keeps its promises and names the one that another breaks."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from uuid import uuid4

import pytest
import typer
from pydantic import SecretStr
from typer.testing import CliRunner

import matrix_test
from client import Holdfast, Store, matrix, trials
from client.matrix import STEPS, Cell, Report
from client.residue import named, processes_in
from client.trials import How, Place, open_bucket
from contracts import errors
from stack.commands.report import junit, table
from stack.commands.terminal import console
from tests.support.client.lying_stack import KNOWN, PROVIDER, LyingStack
from tests.support.client.wire_server import TOKEN, FakeApi
from tests.support.services import SeaweedFS


@pytest.fixture(scope="module")
async def store(store_service: SeaweedFS) -> Store:
    found = Store(
        endpoint=store_service.endpoint,
        access_key=store_service.access_key,
        secret_key=SecretStr(store_service.secret_key),
        bucket="matrix",
    )
    async with open_bucket(found) as bucket:
        await bucket.s3.create_bucket(Bucket=bucket.name)
    return found


@pytest.fixture
def stack(api: FakeApi, store: Store, tmp_path: Path) -> LyingStack:
    home = tmp_path / "workspace"
    home.mkdir()
    made = LyingStack(api, store, home)
    made.install()
    return made


async def test_a_stack_that_keeps_its_promises_passes(
    stack: LyingStack, hf: Holdfast, store: Store
) -> None:
    cell, skipped = await matrix.run_matrix(hf, store, providers=[PROVIDER, "cloud"], jobs=2)
    assert (cell.verdict, cell.reason) == ("PASS", "")
    assert tuple(cell.steps) == STEPS
    assert cell.engine == "weed"
    assert (skipped.verdict, skipped.reason) == ("SKIP", "no key")
    assert stack.api.sessions == {}


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("the turn fails", "write: turn.failed: no mount"),
        ("there is no receipt", "write: the turn has 0 receipts"),
        ("the object differs", "store: the object is not what the sandbox printed"),
        ("the view lies", "store: the object is not the file that the sandbox sees"),
        ("the api lies", "store: the api serves other bytes"),
        ("the sandbox lives on", "kill: still listed"),
        ("the old sandbox is used", "read back: the second turn ran in the killed sandbox"),
        ("the files die with the sandbox", "read back: the second sandbox did not print"),
        ("the answer is remembered", "read back: the second sandbox did not read the file anew"),
        ("the turn is listed without its receipt", "is listed without its receipt"),
        ("objects are left", "clean: objects are left in the store"),
    ],
)
async def test_a_broken_promise_fails_and_is_named(
    stack: LyingStack,
    hf: Holdfast,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    told: str,
) -> None:
    monkeypatch.setattr(trials, "GONE_SECONDS", 0.5)
    stack.lie = lie
    (cell,) = await matrix.run_matrix(hf, store, providers=[PROVIDER])
    assert cell.verdict == "FAIL"
    assert told in cell.reason
    assert stack.api.sessions == {}


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("the processes live on", "kill: left running: "),
        ("the sandbox is on another host", "kill: the sandbox's processes cannot be seen"),
    ],
)
async def test_processes_of_a_local_sandbox_must_be_seen_to_die(
    stack: LyingStack,
    hf: Holdfast,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
    told: str,
) -> None:
    monkeypatch.setattr(trials, "GONE_SECONDS", 0.5)
    stack.lie = lie
    (cell,) = await matrix.run_matrix(hf, store, providers=["local"])
    assert cell.verdict == "FAIL"
    assert told in cell.reason


async def test_another_engine_than_the_one_asked_for_fails(
    stack: LyingStack, hf: Holdfast, store: Store
) -> None:
    (cell,) = await matrix.run_matrix(hf, store, providers=[PROVIDER], how=How("geesefs"))
    assert (cell.verdict, cell.reason) == (
        "FAIL",
        "write: the receipt names weed, not geesefs",
    )


async def test_what_is_required_may_not_be_skipped(
    stack: LyingStack, hf: Holdfast, store: Store
) -> None:
    async def verdicts(*require: str) -> list[str]:
        cells = await matrix.run_matrix(
            hf, store, providers=["cloud", "moon"], harnesses=["pi", "vi"], require=require
        )
        return [cell.verdict for cell in cells]

    assert await verdicts() == ["SKIP"] * 4
    assert await verdicts("cloud") == ["FAIL", "FAIL", "SKIP", "SKIP"]
    assert await verdicts("vi") == ["SKIP", "FAIL", "SKIP", "FAIL"]
    with pytest.raises(errors.InvalidInput, match="clowd"):
        await verdicts("clowd")


@pytest.mark.parametrize(
    ("harness", "provider", "reason"),
    [
        ("pi", PROVIDER, ""),
        ("pi", "cloud", "no key"),
        ("pi", "moon", "the stack has no provider moon"),
        ("vi", PROVIDER, "the stack has no harness vi"),
    ],
)
def test_a_cell_that_cannot_run_says_why(harness: str, provider: str, reason: str) -> None:
    assert matrix.skip_reason(KNOWN, Place(harness, provider)) == reason


def _matrix(api: FakeApi, store: Store, tmp_path: Path, *args: str) -> tuple[int, str]:
    env = {
        "HOLDFAST_S3_ENDPOINT": store.endpoint,
        "HOLDFAST_S3_ACCESS_KEY": store.access_key,
        "HOLDFAST_S3_SECRET_KEY": store.secret_key.get_secret_value(),
    }
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    app = typer.Typer()
    app.command()(matrix_test.matrix)
    result = CliRunner().invoke(app, ["--url", api.url, "--token-file", str(token), *args], env=env)
    return result.exit_code, result.output


def test_the_command_exits_with_1_on_a_fail_only(
    api: FakeApi, store: Store, tmp_path: Path
) -> None:
    api.capabilities = KNOWN
    report = tmp_path / "report.xml"
    code, output = _matrix(api, store, tmp_path, "--providers", "cloud", "--junit", str(report))
    assert code == 0
    assert "SKIP" in output
    assert ET.parse(report).getroot().attrib["skipped"] == "1"
    code, output = _matrix(
        api, store, tmp_path, "--providers", "cloud", "--require", "cloud", "--json"
    )
    assert code == 1
    assert Report.model_validate_json(output).failed == 1


def test_reports_hold_hostile_reasons() -> None:
    reason = "bad \x1b[31m\x00\ufffe <&> [red]"
    cells = [
        Cell(harness="pi", provider="local", verdict="PASS", steps={"write": 1.5}),
        Cell(harness="codex", provider="local", verdict="FAIL", reason=reason),
    ]
    suite = ET.fromstring(junit(cells))
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("2", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == "bad  <&> [red]"
    out = console()
    with out.capture() as shown:
        out.print(table(cells))
    assert "[red]" in shown.get()
    assert "\x1b[31m" not in shown.get()


def test_processes_are_found_by_their_namespace() -> None:
    mine = str(Path("/proc/self/ns/pid").readlink())
    assert os.getpid() in processes_in(mine)
    assert processes_in("pid:[1]") == []


def test_a_process_that_names_the_session_is_found_until_it_is_gone() -> None:
    session_id = uuid4()
    assert named(session_id) == []
    argv = [sys.executable, "-c", "print(flush=True); input()", str(session_id)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it may still show no arguments
        assert named(session_id) == [f"pid {process.pid}"]
        process.communicate(b"\n")
    assert named(session_id) == []
