"""Keys of the store for one session's prefix only, one user of the store per mount.

Deleting the user is the fence: every key of it, also ones it made for itself, is refused from then
on, wherever its holder runs. Users are found by name at the store, not by a record of ours, so that
whoever takes a session over can revoke what another host was given.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError

from contracts.errors import MountFailed, StoreUnavailable
from sidecar.workspace.store import StoreAddress

REGION = "us-east-1"
POLICY = "one-session"
REFUSED = 403
SECONDS = 10


@dataclass(frozen=True)
class SessionKey:
    """Opens `bucket/<session>/` and nothing else, until its user is deleted."""

    user: str
    access_key: str
    secret_key: str = field(repr=False)


class SessionKeys:
    """Makes and revokes the keys of all sessions. Raises, in every call: StoreUnavailable."""

    def __init__(self, iam: Any, http: aiohttp.ClientSession, address: StoreAddress) -> None:
        self._iam = iam
        self._http = http
        self._address = address
        self._granted: dict[str, SessionKey] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, address: StoreAddress) -> AsyncIterator[SessionKeys]:
        """`address` has the key that may make others; it stays in this process."""
        config = AioConfig(
            retries={"max_attempts": 3, "mode": "standard"}, connect_timeout=5, read_timeout=SECONDS
        )
        async with (
            aioboto3.Session().client(
                "iam",
                endpoint_url=address.endpoint,
                aws_access_key_id=address.access_key,
                aws_secret_access_key=address.secret_key,
                region_name=REGION,
                config=config,
            ) as iam,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as http,
        ):
            yield cls(iam, http, address)

    async def grant(self, session_id: str, host: str) -> SessionKey:
        """A new key for the session, marked with the host that mounts by it."""
        user = f"{_users_of(session_id)}{host}.{secrets.token_hex(4)}"
        with _store_errors("make a key for one session"):
            with _fine(
                "EntityAlreadyExists"
            ):  # the name is ours: an answer was lost, and asked again
                await self._iam.create_user(UserName=user)
            policy = json.dumps(_policy(self._address.bucket, session_id))
            await self._iam.put_user_policy(UserName=user, PolicyName=POLICY, PolicyDocument=policy)
            made = (await self._iam.create_access_key(UserName=user))["AccessKey"]
        key = SessionKey(user, made["AccessKeyId"], made["SecretAccessKey"])
        self._granted[user] = key
        return key

    async def revoke(self, session_id: str) -> int:
        """Refuse every key that the session was ever given, on whatever host; how many users.

        Raises: MountFailed, when the store goes on to accept one.
        """
        doomed = await self._users(_users_of(session_id))
        for user in doomed:
            await self._delete(user)
        left = await self._users(_users_of(session_id)) if doomed else []
        if left:
            raise MountFailed(f"the store keeps keys that were revoked: {', '.join(left)}")
        for user in doomed:
            await self._prove_refused(session_id, self._granted.pop(user, None))
        return len(doomed)

    async def sweep(self, host: str, mounted: Container[str]) -> int:
        """Delete this host's users whose session it does not have mounted; how many."""
        count = 0
        for user in await self._users(_users_of("")):
            session_id, _, owner = user.removeprefix(_users_of("")).partition(".")
            if owner.startswith(f"{host}.") and session_id not in mounted:
                await self._delete(user)
                count += 1
        return count

    async def _users(self, prefix: str) -> list[str]:
        found: list[str] = []
        with _store_errors("list its users"):
            async for page in self._iam.get_paginator("list_users").paginate():
                found += [user["UserName"] for user in page["Users"]]
        return [name for name in found if name.startswith(prefix)]

    async def _delete(self, user: str) -> None:
        """The user in one step with all its keys: one by one, it could make itself another."""
        with _store_errors("revoke a key"):
            # somebody else may revoke the same key at the same time
            with _fine("NoSuchEntity"):
                await self._iam.delete_user_policy(UserName=user, PolicyName=POLICY)
            with _fine("NoSuchEntity"):
                await self._iam.delete_user(UserName=user)

    async def _prove_refused(self, session_id: str, key: SessionKey | None) -> None:
        if key is None:
            return  # another process had it: that its user is gone must do
        url = f"{self._address.endpoint}/{self._address.bucket}"
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{session_id}/"}
        request = AWSRequest("GET", url, params=query)
        S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", REGION).add_auth(request)
        with _store_errors("say whether a key is revoked"):
            async with self._http.get(
                url, params=query, headers=dict(request.headers.items())
            ) as answer:
                if answer.status != REFUSED:
                    raise MountFailed(f"the store still answers {key.user}: {answer.status}")


def _users_of(session_id: str) -> str:
    return f"holdfast.{session_id}." if session_id else "holdfast."


def _policy(bucket: str, session_id: str) -> dict[str, Any]:
    arn = f"arn:aws:s3:::{bucket}"
    objects = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
    prefixes = [f"{session_id}/", f"{session_id}/*"]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [f"s3:{action}" for action in objects],
                "Resource": [f"{arn}/{session_id}/*"],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [arn],
                "Condition": {"StringLike": {"s3:prefix": prefixes}},
            },
        ],
    }


@contextlib.contextmanager
def _fine(code: str) -> Iterator[None]:
    """An error that says that what was asked for is so already."""
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] != code:
            raise


@contextlib.contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError, aiohttp.ClientError, OSError) as error:
        raise StoreUnavailable(
            f"the store cannot {what}: {error}", hint="Is SeaweedFS up? `holdfast status` tells."
        ) from error
