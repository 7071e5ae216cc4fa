"""Damage to records, and who must say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.damage import Damage, damage_record, find_record, find_unreported
from tests.chaos.report import Violation

SESSION, OTHER = "0" * 8, "1" * 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, session in (("a", SESSION), ("b", OTHER)):
        (tmp_path / "runs").mkdir(exist_ok=True)
        first = json.dumps({"session_id": session})
        (tmp_path / "runs" / f"{number}.ndjson").write_text(f"{first}\n{'x' * 9000}\n")
        (tmp_path / "runs" / f"{number}.progress").write_text("{}")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / f"{SESSION}.json").write_text("0123456789")
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_only_the_session_s_own_record_is_found(data: Path) -> None:
    assert find_record("journal", data, data, SESSION) == data / "runs" / "a.ndjson"
    assert find_record("progress", data, data, OTHER) == data / "runs" / "b.progress"
    assert find_record("live", data, data, SESSION) == data / "live" / f"{SESSION}.json"
    assert find_record("live", data, data, OTHER) is None


def test_a_record_is_cut_and_a_log_loses_its_tail(data: Path) -> None:
    path = data / "live" / f"{SESSION}.json"
    assert damage_record("live", path, 0.5).left == b"01234"
    assert damage_record("live", path, 0.0).left == b""
    journal = data / "runs" / "a.ndjson"
    size = journal.stat().st_size
    assert len(damage_record("journal", journal, 0.5).left) == size - 2048
    assert damage_record("journal", journal, 0.0).left == b""


def test_damage_that_was_met_must_be_in_a_log(data: Path) -> None:
    path = data / "live" / f"{SESSION}.json"
    damage = damage_record("live", path, 0.5)
    assert find_unreported([damage], data / "logs") == []  # nobody has looked
    path.rename(path.with_name("aside"))
    silent = Violation("unreported", f"{path} was damaged, and no log says so")
    assert find_unreported([damage], data / "logs") == [silent]
    (data / "logs" / "sidecar.log").write_text(f"ERROR: cannot read the record {path}, renamed it")
    assert find_unreported([damage], data / "logs") == []


def test_a_log_of_lines_is_held_to_its_lines_instead(data: Path) -> None:
    journal = Damage("journal", data / "gone", b"")
    assert find_unreported([journal], data / "logs") == []
