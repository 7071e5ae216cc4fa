"""The store after its disk was full."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from pydantic import SecretStr

from api.settings import StorageSettings
from api.store import Stores, open_client, open_stores
from contracts.errors import StoreUnavailable
from stack.embedded.credentials import load_credentials
from stack.embedded.layout import Layout
from stack.embedded.logs import Logs
from stack.embedded.ports import store_ports
from stack.embedded.seaweedfs import s3_endpoint, seaweedfs_part
from stack.embedded.supervisor import Supervisor
from stack.install.everything import find_everything
from stack.settings import inherited_environment, load_settings
from tests.support.requirements import missing
from tests.support.small_disk import fill_disk, free_disk, mount_disk, unmount_disk

SECONDS = 60
WRITES = 200


async def test_the_store_takes_objects_again_when_its_disk_has_room_again(short_dir: Path) -> None:
    """Its filer would refuse every write until it is started again."""
    if os.geteuid() != 0:
        missing("root", "only root can mount a disk to fill")
    layout = Layout(short_dir / "data", short_dir / "run")
    layout.make()
    mount_disk(layout.seaweedfs, 0o700)
    try:
        await _fill_and_free(layout)
    finally:
        unmount_disk(layout.seaweedfs)


async def _fill_and_free(layout: Layout) -> None:
    settings = load_settings()
    credentials, ports = load_credentials(layout, settings), store_ports(layout.ports)
    part = seaweedfs_part(
        layout,
        find_everything(settings).weed,
        ports,
        credentials,
        ("sessions", "state"),
        inherited_environment(),
    )
    access = StorageSettings(
        database_url=SecretStr(""),
        s3_endpoint=s3_endpoint(ports),
        s3_access_key=credentials.s3_access_key,
        s3_secret_key=credentials.s3_secret_key,
    )
    with contextlib.closing(Logs(layout.logs)) as logs:
        supervisor = Supervisor([part], pids=layout.pids, logs=logs)
        async with asyncio.timeout(3 * SECONDS), asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            try:
                await supervisor.all_ready.wait()
                async with open_stores(access) as stores:
                    await stores.check_writing()
                    fill_disk(layout.seaweedfs)
                    with pytest.raises(ClientError):
                        await _write_names(access)
                    with pytest.raises(StoreUnavailable):
                        await stores.check_writing()
                    await stores.check()  # what it has can be read
                    assert supervisor.states[0].restarts == 0
                    free_disk(layout.seaweedfs)
                    async with asyncio.timeout(SECONDS):
                        await _wait_for_room(stores)
            finally:
                supervisor.stop()
    assert supervisor.states[0].restarts == 1


async def _write_names(access: StorageSettings) -> None:
    """Objects without content, which only the filer's database has to take. Several: the last page
    of a file has some room left."""
    async with open_client(access) as client:
        for number in range(WRITES):
            await client.put_object(Bucket="state", Key=f"{number}-{'x' * 200}")


async def _wait_for_room(stores: Stores) -> None:
    """The caller bounds the wait."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await stores.check_writing()
        await asyncio.sleep(0.1)
