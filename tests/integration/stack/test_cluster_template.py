"""New PostgreSQL clusters are copies of the first one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stack.embedded import postgres, processes
from stack.embedded.cluster_template import ClusterTemplate
from stack.embedded.layout import Layout
from stack.embedded.part import Part
from stack.install.binaries import find_postgres
from stack.settings import inherited_environment
from tests.services import short_directory

QUERY = b"SELECT datname, pg_encoding_to_char(encoding) AS e, datlocale AS l FROM pg_database;\n"


def part_of(home: Path, name: str, cache: Path) -> tuple[Part, Layout]:
    layout = Layout(home / name, home / f"{name}-run")
    layout.make()
    part = postgres.postgres_part(layout, find_postgres(), cache, inherited_environment())
    return part, layout


def asked(part: Part, layout: Layout) -> bytes:
    """What a server without clients tells of its databases."""
    program, data = part.argv[0], str(layout.postgres)
    done = subprocess.run(
        (*part.wrapper, program, "--single", "-D", data, postgres.DATABASE),
        input=QUERY,
        env=dict(part.env),
        capture_output=True,
        check=True,
    )
    return b"\n".join(line for line in done.stdout.splitlines() if b"= " in line)


async def test_the_second_cluster_is_as_the_first_one_and_needs_no_initdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with short_directory() as home:
        cache = tmp_path / "cache"
        ran: list[str] = []
        run_tool = processes.run_tool

        async def counted(name: str, *argv: str, **options: object) -> str:
            options_shown = {"--version", "--single", "--sync-only"}.intersection(argv)
            ran.append(" ".join((name, *options_shown)))
            return await run_tool(name, *argv, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(postgres, "run_tool", counted)
        one, one_layout = part_of(home, "one", cache)
        assert one.prepare is not None
        await one.prepare()
        made_by = list(ran)
        ran.clear()
        two, two_layout = part_of(home, "two", cache)
        assert two.prepare is not None
        await two.prepare()
        assert made_by == ["postgres --version", "initdb", "postgres --single"]
        assert ran == ["postgres --version", "initdb --sync-only"]
        told = asked(one, one_layout)
        assert b'"holdfast"' in told
        assert b'"UTF8"' in told
        assert asked(two, two_layout) == told
        modes = {path.stat().st_mode & 0o077 for path in two_layout.postgres.rglob("*")}
        assert modes == {0}, "others can read the cluster"
        assert two_layout.postgres.stat().st_mode & 0o777 == 0o700
        (template,) = (cache / "postgres").iterdir()
        assert template.stat().st_mode & 0o777 == 0o700
        assert not (template / "postmaster.pid").exists()


def test_a_template_that_cannot_be_copied_is_none(tmp_path: Path) -> None:
    template, target = ClusterTemplate(tmp_path / "t"), tmp_path / "copy"
    assert not template.copy_to(target)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "broken").symlink_to("nowhere")
    os.mkfifo(tmp_path / "t" / "pipe")  # nothing that can be copied
    assert not template.copy_to(target)
    assert not target.exists()


def test_the_template_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not ClusterTemplate(tmp_path / "t").copy_to(tmp_path / "copy")


def test_a_template_is_kept_once_and_leftovers_are_swept(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        each.mkdir(mode=0o700)
        (each / "PG_VERSION").write_text(each.name)
    template = ClusterTemplate(tmp_path / "cache" / "postgres" / "key")
    left = template.place.parent / ".new-left"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    template.keep(first)
    template.keep(second)
    assert [path.name for path in template.place.parent.iterdir()] == ["key"]
    assert template.copy_to(tmp_path / "copy")
    assert (tmp_path / "copy" / "PG_VERSION").read_text() == "first"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "file").write_text("")
    ClusterTemplate(tmp_path / "file" / "postgres" / "key").keep(tmp_path / "cluster")
