"""`python -m api.backup`: files, pipes, and being stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.backup import __main__ as program
from api.backup.errors import BackupRunning
from api.settings import Settings
from tests.integration.api.test_process import environment
from tests.support.api.backing import Stack, endless
from tests.support.api.serving import Api
from tests.support.names import env_name
from tests.support.services import SeaweedFS, free_port

PROGRAM = (sys.executable, "-m", "api.backup")


def of(stack: Stack, store: SeaweedFS) -> dict[str, str]:
    """The environment in which the program works on this stack."""
    url = stack.settings.database_url.get_secret_value()
    return environment(url, store, stack.settings.sidecar_url, free_port()) | {
        env_name(Settings, "s3_bucket"): stack.settings.s3_bucket,
        env_name(Settings, "s3_state_bucket"): stack.settings.s3_state_bucket,
    }


async def test_a_backup_that_is_stopped_leaves_no_file_and_no_hold(
    busy: tuple[Api, Stack], store_service: SeaweedFS, tmp_path: Path
) -> None:
    api, stack = busy
    sid = (await api.new_session()).id
    running, _ = await api.start_run(sid, endless)
    env = of(stack, store_service)
    path = tmp_path / "backup.tar"
    argv = [*PROGRAM, "create", str(path)]
    pipe = asyncio.subprocess.PIPE
    making = await asyncio.create_subprocess_exec(*argv, env=env, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(30):
            while not (await stack.rows())["holds"]:
                await asyncio.sleep(0.05)
        assert [each.name for each in tmp_path.iterdir()] == ["backup.tar.partial"]
        assert path.with_name("backup.tar.partial").stat().st_mode & 0o777 == 0o600
        making.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            _, said = await making.communicate()
    finally:
        if making.returncode is None:
            making.kill()
    assert making.returncode == 1
    assert b"stopped before it was done" in said
    assert list(tmp_path.iterdir()) == []
    assert (await stack.rows())["holds"] == []
    await api.http.post(f"/sessions/{sid}/turns/{running.id}/cancel")
    done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == 1
    again = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, timeout=60)
    assert again.returncode == 1
    assert b"is there already" in again.stderr


async def test_a_backup_goes_through_a_pipe_and_one_that_broke_is_seen(
    busy: tuple[Api, Stack], store_service: SeaweedFS
) -> None:
    api, stack = busy
    await api.new_session()
    env = of(stack, store_service)
    to_a_pipe = [*PROGRAM, "create", "-"]
    piped = await asyncio.to_thread(
        subprocess.run, to_a_pipe, env=env, capture_output=True, timeout=60
    )
    assert (piped.returncode, json.loads(piped.stderr.splitlines()[-1])["sessions"]) == (0, 1)
    from_a_pipe = [*PROGRAM, "check", "-"]
    for sent, code in ((piped.stdout, 0), (piped.stdout[:-2048], 1)):
        looked = await asyncio.to_thread(
            subprocess.run, from_a_pipe, input=sent, capture_output=True, timeout=60
        )
        assert looked.returncode == code, looked.stderr


async def test_a_file_that_another_backup_writes_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar"
    with program.write_whole(path) as file:
        file.write(b"mine")
        with (
            pytest.raises(BackupRunning, match="Another backup writes"),
            program.write_whole(path),
        ):
            pass
    assert path.read_bytes() == b"mine"
    left = tmp_path / "other.tar.partial"
    left.write_bytes(b"left by one that was killed")
    with program.write_whole(tmp_path / "other.tar") as file:
        file.write(b"new")
    assert (tmp_path / "other.tar").read_bytes() == b"new"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["backup.tar", "other.tar"]
