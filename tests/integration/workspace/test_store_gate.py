"""The store as sandboxes in a cloud get to see it: S3 alone, for keys of one session each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from sidecar.workspace.boto_session import shared_session
from sidecar.workspace.iam import REGION, SessionKey, SessionKeys
from sidecar.workspace.store import Store, StoreAddress
from stack.embedded.ports import GRPC_OFFSET
from tests.support.services import STATE_BUCKET, SeaweedFS
from tests.support.store_gate import Gate, store_gate

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

# Where it is reached from, as a tunnel would have it: it is what clients sign.
OUTSIDE = "store.invalid"
WRITERS = 4


@pytest.fixture(scope="module")
async def gate(store_service: SeaweedFS) -> AsyncIterator[Gate]:
    async with store_gate(store_service) as found:
        yield found


@pytest.fixture
async def key(keys: SessionKeys, store: Store) -> AsyncIterator[SessionKey]:
    """For session `g1`, as a cloud's sandbox has it; its neighbours have files."""
    for place in ("g1/mine", "g10/theirs", "g2/theirs"):
        await store.put(place, b"content")
    await store.in_bucket(STATE_BUCKET).put("g1/manifests/x.json", b"{}")
    yield await keys.grant("g1", "a-host")
    await keys.revoke("g1")


@contextlib.asynccontextmanager
async def client(service: str, url: str, access_key: str, secret_key: str) -> AsyncIterator[Any]:
    opened_by: Any = shared_session()
    async with opened_by.client(
        service,
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=REGION,
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    ) as opened:
        yield opened


@pytest.fixture
async def s3(gate: Gate, key: SessionKey) -> AsyncIterator[S3Client]:
    async with client("s3", gate.url, key.access_key, key.secret_key) as opened:
        yield opened


async def refusal(call: Awaitable[Any]) -> str:
    """The code of a 403; nothing for what went through."""
    try:
        await call
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
            raise
        return error.response["Error"]["Code"]
    return ""


async def put(http: aiohttp.ClientSession, url: str, key: SessionKey) -> int:
    request = AWSRequest("PUT", url, data=b"x")
    S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", REGION).add_auth(request)
    async with http.put(url, data=b"x", headers=dict(request.headers.items())) as answer:
        return answer.status


async def test_a_sessions_key_opens_its_own_prefix(s3: S3Client, address: StoreAddress) -> None:
    bucket = address.bucket
    await s3.put_object(Bucket=bucket, Key="g1/new", Body=b"x")
    got = await s3.get_object(Bucket=bucket, Key="g1/mine")
    assert await got["Body"].read() == b"content"
    listed = await s3.list_objects_v2(Bucket=bucket, Prefix="g1/")
    assert {"g1/mine", "g1/new"} <= {item["Key"] for item in listed["Contents"]}
    await s3.delete_object(Bucket=bucket, Key="g1/new")


@pytest.mark.parametrize("other", ["g2", "g10"])
async def test_it_opens_no_other_sessions_files(
    s3: S3Client, address: StoreAddress, other: str
) -> None:
    bucket, theirs = address.bucket, f"{other}/theirs"
    source = f"{bucket}/{theirs}"
    for call in (
        s3.get_object(Bucket=bucket, Key=theirs),
        s3.head_object(Bucket=bucket, Key=theirs),
        s3.put_object(Bucket=bucket, Key=theirs, Body=b"x"),
        s3.delete_object(Bucket=bucket, Key=theirs),
        s3.copy_object(Bucket=bucket, Key="g1/stolen", CopySource=source),
        s3.list_objects_v2(Bucket=bucket, Prefix=f"{other}/"),
    ):
        assert await refusal(call)


async def test_it_lists_no_more_than_its_own(s3: S3Client, address: StoreAddress) -> None:
    assert await refusal(s3.list_objects_v2(Bucket=address.bucket))
    assert await refusal(s3.list_objects_v2(Bucket=address.bucket, Prefix="g1"))
    assert await refusal(s3.list_objects_v2(Bucket=STATE_BUCKET))
    assert await refusal(s3.get_object(Bucket=STATE_BUCKET, Key="g1/manifests/x.json"))
    assert await refusal(s3.create_bucket(Bucket="one-more"))
    assert (await s3.list_buckets())["Buckets"] == []


async def test_however_it_learns_of_a_key_it_lists_no_more(
    gate: Gate, keys: SessionKeys, address: StoreAddress
) -> None:
    """It hears of the user and of what it may do by two ways, in either order."""
    for number in range(WRITERS * 3):
        key = await keys.grant(f"w{number}", "a-host")
        async with client("s3", gate.url, key.access_key, key.secret_key) as s3:
            assert await refusal(s3.list_objects_v2(Bucket=address.bucket)), number
        await keys.revoke(f"w{number}")


@pytest.mark.parametrize("action", ["CreateAccessKey", "ListUsers", "GetUser", "PutUserPolicy"])
async def test_no_key_is_made_and_no_user_told(gate: Gate, key: SessionKey, action: str) -> None:
    """On the store's own port the very same request makes the user a second key."""
    form = {"Action": action, "Version": "2010-05-08", "UserName": key.user}
    request = AWSRequest("POST", f"{gate.url}/", data=form)
    S3SigV4Auth(Credentials(key.access_key, key.secret_key), "iam", REGION).add_auth(request)
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{gate.url}/", data=form, headers=dict(request.headers.items()))
    assert answer.status_code == 405
    assert answer.content == b""


async def test_the_administrators_key_is_nobodys_here(
    gate: Gate, key: SessionKey, address: StoreAddress
) -> None:
    async with client("s3", gate.url, address.access_key, address.secret_key) as administrator:
        for call in (
            administrator.list_buckets(),
            administrator.get_object(Bucket=address.bucket, Key="g1/mine"),
            administrator.list_objects_v2(Bucket=address.bucket),
        ):
            assert await refusal(call) == "InvalidAccessKeyId"


async def test_without_a_key_nothing_is_told(gate: Gate, address: StoreAddress) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for path in ("/", f"/{address.bucket}", f"/{address.bucket}/g1/mine"):
            assert (await http.get(gate.url + path)).status_code == 403


async def test_nothing_of_it_can_be_reached_from_another_machine(gate: Gate) -> None:
    """Every socket that its process listens on is on loopback."""
    with open("/proc/net/tcp", encoding="ascii") as table:  # noqa: ASYNC230, PTH123
        rows = [line.split() for line in table.readlines()[1:]]
    with open("/proc/net/tcp6", encoding="ascii") as table:  # noqa: ASYNC230, PTH123
        rows += [line.split() for line in table.readlines()[1:]]
    wanted = {gate.port, gate.port + GRPC_OFFSET}
    found = {
        (row[1].rpartition(":")[0], int(row[1].rpartition(":")[2], 16))
        for row in rows
        if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) in wanted
    }
    assert found == {("0100007F", port) for port in wanted}


async def test_a_revoked_key_is_refused_from_the_moment_that_revoke_returns(
    gate: Gate, key: SessionKey, keys: SessionKeys, address: StoreAddress
) -> None:
    """It is a fence: a sandbox that had the session before writes nothing more."""
    url = f"{gate.url}/{address.bucket}/g1/late"
    began: list[float] = []

    async def write_on(http: aiohttp.ClientSession) -> None:
        at = time.monotonic()
        while await put(http, url, key) == 200:
            began.append(at)
            at = time.monotonic()

    async with aiohttp.ClientSession() as http:
        writing = [asyncio.ensure_future(write_on(http)) for _ in range(WRITERS)]
        async with asyncio.timeout(30):
            while len(began) < 5 * WRITERS:  # it wrote, and writes
                await asyncio.sleep(0.01)
            assert await keys.revoke("g1") == 1
            revoked = time.monotonic()
            await asyncio.gather(*writing)
        assert max(began) < revoked
        assert await put(http, url, key) == 403


async def test_what_is_signed_is_the_address_that_clients_know(
    store_service: SeaweedFS, key: SessionKey, address: StoreAddress
) -> None:
    """A tunnel changes the Host on its way; the signature is made with the one it has outside."""
    async with (
        store_gate(store_service, f"http://{OUTSIDE}") as gate,
        aiohttp.ClientSession() as http,
    ):
        path = f"/{address.bucket}/g1/by-tunnel"
        request = AWSRequest("PUT", f"http://{OUTSIDE}{path}", data=b"x")
        S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", REGION).add_auth(request)
        headers = dict(request.headers.items())
        async with http.put(gate.url + path, data=b"x", headers=headers) as answer:
            assert answer.status == 200
        # and the one by which we ask ourselves
        assert await put(http, gate.url + path, key) == 200
