"""With what is inside a sandbox, and with the key of a mount, no other session is reached."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from sidecar.providers.base import Command, SandboxSpec
from sidecar.workspace.boto_session import shared_session
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.iam import SessionKey, SessionKeys
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.workspace.conftest import STATE_BUCKET
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

GRPC = 10_000


@pytest.fixture
async def sandbox(durable: HostMounted, short_dir: Path) -> MountedSandbox:
    session = str(uuid.uuid4())
    spec = SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")
    return await durable.create(spec)


async def sh(sandbox: MountedSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["bash", "-c", script], timeout=60))
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


def keys_of_the_daemon(sandbox: MountedSandbox) -> list[str]:
    pid = sandbox.workspace.mount.daemon.pid
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return [line.partition("=")[2] for line in environ if line.startswith("AWS_")]


async def test_no_key_of_the_store_is_inside_a_sandbox(
    sandbox: MountedSandbox, address: StoreAddress
) -> None:
    hidden = [address.access_key, address.secret_key, *keys_of_the_daemon(sandbox)]
    assert len(hidden) == (4 if sandbox.report.engine == "geesefs" else 2)
    await sandbox.write("/home/agent/decoy", b"a decoy that must be found")
    seen = await sh(
        sandbox,
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n';"
        " find /home /run /tmp /etc /session /dev/shm /root -type f -exec cat {} + 2>/dev/null"
        " | strings; true",
    )
    assert "a decoy that must be found" in seen, "the search is blind"
    assert [secret for secret in hidden if secret in seen] == []
    assert "/dev/fuse" not in await sh(sandbox, "ls /dev/fuse 2>/dev/null; true")


async def test_no_port_of_the_store_can_be_reached_from_a_sandbox(
    sandbox: MountedSandbox, store_service: SeaweedFS
) -> None:
    numbers = [port + more for port in store_service.ports.values() for more in (0, GRPC)]
    assert len(numbers) == 8
    for port in numbers:
        probe = f"timeout 5 bash -c '</dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo OPEN; true"
        assert "OPEN" not in await sh(sandbox, probe), port
    for port in store_service.ports.values():
        reader = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{port:04X}" in reader, "nothing listens there: the test is blind"


@contextlib.asynccontextmanager
async def client(service: str, address: StoreAddress, key: SessionKey) -> AsyncIterator[Any]:
    opened_by: Any = shared_session()
    async with opened_by.client(
        service,
        endpoint_url=address.endpoint,
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    ) as opened:
        yield opened


@pytest.fixture
async def key(keys: SessionKeys, store: Store) -> AsyncIterator[SessionKey]:
    """For session `s1`, as a cloud sandbox would have it; its neighbours have files."""
    for place in ("s1/mine", "s10/theirs", "s2/theirs"):
        await store.put(place, b"content")
    await store.in_bucket(STATE_BUCKET).put("s1/manifests/x.json", b"{}")
    yield await keys.grant("s1", "a-host")
    await keys.revoke("s1")


@pytest.fixture
async def s3(address: StoreAddress, key: SessionKey) -> AsyncIterator[S3Client]:
    async with client("s3", address, key) as opened:
        yield opened


async def refused(call: Awaitable[Any]) -> bool:
    try:
        await call
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    return False


async def test_the_key_opens_its_own_prefix(s3: S3Client, address: StoreAddress) -> None:
    bucket = address.bucket
    await s3.put_object(Bucket=bucket, Key="s1/new", Body=b"x")
    await s3.copy_object(Bucket=bucket, Key="s1/copy", CopySource=f"{bucket}/s1/new")
    listed = await s3.list_objects_v2(Bucket=bucket, Prefix="s1/")
    assert {"s1/copy", "s1/mine", "s1/new"} <= {item["Key"] for item in listed["Contents"]}
    await s3.delete_object(Bucket=bucket, Key="s1/new")


@pytest.mark.parametrize("other", ["s2", "s10"])
async def test_the_key_opens_no_other_sessions_files(
    s3: S3Client, address: StoreAddress, store: Store, other: str
) -> None:
    bucket, theirs = address.bucket, f"{other}/theirs"
    source, own = f"{bucket}/{theirs}", f"{bucket}/s1/mine"
    many = {"Objects": [{"Key": theirs}], "Quiet": False}
    assert await refused(s3.get_object(Bucket=bucket, Key=theirs))
    assert await refused(s3.head_object(Bucket=bucket, Key=theirs))
    with pytest.raises(ClientError, match="InvalidRequest"):
        await s3.get_object(Bucket=bucket, Key=f"s1/../{theirs}")
    assert await refused(s3.put_object(Bucket=bucket, Key=theirs, Body=b"x"))
    assert await refused(s3.put_object(Bucket=bucket, Key=f"{other}/new", Body=b"x"))
    assert await refused(s3.delete_object(Bucket=bucket, Key=theirs))
    assert await refused(s3.copy_object(Bucket=bucket, Key="s1/stolen", CopySource=source))
    assert await refused(s3.copy_object(Bucket=bucket, Key=theirs, CopySource=own))
    assert await refused(s3.create_multipart_upload(Bucket=bucket, Key=theirs))
    assert await refused(s3.list_objects_v2(Bucket=bucket, Prefix=f"{other}/"))
    answer = {}
    with contextlib.suppress(ClientError):
        answer = dict(await s3.delete_objects(Bucket=bucket, Delete=many))  # type: ignore[arg-type]
    assert "Deleted" not in answer, answer
    assert set(await store.list(f"{other}/")) == {"theirs"}
    assert await store.get(theirs) is not None


async def test_the_key_opens_nothing_else_of_the_store(s3: S3Client, address: StoreAddress) -> None:
    bucket = address.bucket
    assert await refused(s3.list_objects_v2(Bucket=bucket))
    assert await refused(s3.list_objects_v2(Bucket=bucket, Prefix="s1"))
    assert await refused(s3.list_objects_v2(Bucket=bucket, Prefix=""))
    assert await refused(s3.get_object(Bucket=STATE_BUCKET, Key="s1/manifests/x.json"))
    assert await refused(s3.put_object(Bucket=STATE_BUCKET, Key="s1/manifests/x.json", Body=b"x"))
    assert await refused(s3.list_objects_v2(Bucket=STATE_BUCKET, Prefix="s1/"))
    assert await refused(s3.create_bucket(Bucket="mine"))
    assert await refused(s3.delete_bucket(Bucket=bucket))
    assert await refused(s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Statement": []})))


IAM_CALLS: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "list users": lambda iam, _: iam.list_users(),
    "make a user": lambda iam, _: iam.create_user(UserName="evil"),
    "a key of the stack's": lambda iam, _: iam.create_access_key(UserName="api"),
    "keys of the stack's": lambda iam, _: iam.list_access_keys(UserName="api"),
    "widen its policy": lambda iam, me: iam.put_user_policy(
        UserName=me, PolicyName="all", PolicyDocument=json.dumps({"Statement": []})
    ),
    "attach a policy": lambda iam, me: iam.attach_user_policy(
        UserName=me, PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess"
    ),
    "rename itself": lambda iam, me: iam.update_user(UserName=me, NewUserName="api2"),
    "delete another": lambda iam, _: iam.delete_user(UserName="api"),
}


@pytest.mark.parametrize("what", IAM_CALLS)
async def test_the_key_cannot_make_more_of_itself(
    address: StoreAddress, key: SessionKey, what: str
) -> None:
    async with client("iam", address, key) as iam:
        assert await refused(IAM_CALLS[what](iam, key.user))


async def test_a_key_that_a_user_made_for_itself_is_revoked_with_it(
    address: StoreAddress, keys: SessionKeys, key: SessionKey
) -> None:
    """On the store's main endpoint a user may make itself further keys. They open no more than the
    first, and do not outlive its user."""
    async with client("iam", address, key) as iam:
        made = (await iam.create_access_key(UserName=key.user))["AccessKey"]
    second = SessionKey(key.user, made["AccessKeyId"], made["SecretAccessKey"])
    async with client("s3", address, second) as s3:
        await s3.get_object(Bucket=address.bucket, Key="s1/mine")
        assert await refused(s3.get_object(Bucket=address.bucket, Key="s2/theirs"))
        assert await keys.revoke("s1") == 1
        assert await refused(s3.get_object(Bucket=address.bucket, Key="s1/mine"))
    async with client("s3", address, key) as s3:
        assert await refused(s3.get_object(Bucket=address.bucket, Key="s1/mine"))
