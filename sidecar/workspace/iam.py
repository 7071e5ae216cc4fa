"""Keys of the store for one session's prefix only, one user of the store per mount.

What a user may do is a policy of its own that is attached to it. One written into the user itself
is also kept as a list of actions without its conditions, and a second S3 server of the store that
learns of the user before its policy goes by that list: it showed every session's file names.

Deleting the user is the fence: every key of it, also ones it made for itself, is refused from then
on, wherever its holder runs. Users are found by name at the store, not by a record of ours, so that
whoever takes a session over can revoke what another host was given.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError

from contracts.errors import MountFailed, StoreUnavailable
from contracts.redaction import Redactor
from sidecar.workspace.boto_session import shared_session
from sidecar.workspace.store import StoreAddress

REGION = "us-east-1"
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

    def __init__(
        self, iam: Any, http: aiohttp.ClientSession, address: StoreAddress, redactor: Redactor
    ) -> None:
        self._iam = iam
        self._http = http
        self._address = address
        self._redactor = redactor
        self._granted: dict[str, SessionKey] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, address: StoreAddress, redactor: Redactor | None = None
    ) -> AsyncIterator[SessionKeys]:
        """`address` has the key that may make others; it stays in this process. What is made is
        told to the `redactor`."""
        config = AioConfig(
            retries={"max_attempts": 3, "mode": "standard"}, connect_timeout=5, read_timeout=SECONDS
        )
        async with (
            shared_session().client(
                "iam",
                endpoint_url=address.endpoint,
                aws_access_key_id=address.access_key,
                aws_secret_access_key=address.secret_key,
                region_name=REGION,
                config=config,
            ) as iam,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as http,
        ):
            yield cls(iam, http, address, redactor or Redactor())

    async def grant(self, session_id: str, host: str) -> SessionKey:
        """A new key for the session, marked with the host that mounts by it."""
        user = f"{_users_of(session_id)}{_plain(host)}_{secrets.token_hex(4)}"
        with _store_errors("make a key for one session"):
            policy = json.dumps(_policy(self._address.bucket, session_id))
            # the names are ours: where one exists, an answer was lost and asked for again
            with _fine("EntityAlreadyExists"):
                await self._iam.create_policy(PolicyName=user, PolicyDocument=policy)
            with _fine("EntityAlreadyExists"):
                await self._iam.create_user(UserName=user)
            await self._iam.attach_user_policy(UserName=user, PolicyArn=_policy_arn(user))
            made = (await self._iam.create_access_key(UserName=user))["AccessKey"]
        key = SessionKey(user, made["AccessKeyId"], made["SecretAccessKey"])
        self._granted[user] = key
        self._redactor.know(key.secret_key)
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
            key = self._granted.pop(user, None)
            await self._prove_refused(session_id, key)
            if key is not None:
                self._redactor.forget(key.secret_key)
        return len(doomed)

    async def sweep(self, host: str, mounted: Container[str]) -> int:
        """Delete this host's users whose session it does not have mounted; how many."""
        users = set(await self._users(_users_of("")))
        doomed = [user for user in users if _is_of(host, user, mounted)]
        for user in doomed:
            await self._delete(user)
        for policy in await self._policies(_users_of("")):
            if policy not in users and _is_of(host, policy, mounted):
                await self._delete_policy(policy)
        return len(doomed)

    async def _users(self, prefix: str) -> list[str]:
        return await self._named("list_users", "Users", "UserName", prefix)

    async def _policies(self, prefix: str) -> list[str]:
        return await self._named("list_policies", "Policies", "PolicyName", prefix)

    async def _named(self, call: str, items: str, name: str, prefix: str) -> list[str]:
        found: list[str] = []
        with _store_errors("tell whose keys it has"):
            async for page in self._iam.get_paginator(call).paginate():
                found += [item[name] for item in page[items]]
        return [each for each in found if each.startswith(prefix)]

    async def _delete(self, user: str) -> None:
        """The user in one step with all its keys: one by one, it could make itself another."""
        # somebody else may revoke the same key at the same time
        with _store_errors("revoke a key"), _fine("NoSuchEntity"):
            await self._iam.delete_user(UserName=user)
        await self._delete_policy(user)

    async def _delete_policy(self, name: str) -> None:
        with _store_errors("delete a policy"), _fine("NoSuchEntity"):
            await self._iam.delete_policy(PolicyArn=_policy_arn(name))

    async def _prove_refused(self, session_id: str, key: SessionKey | None) -> None:
        if key is None:
            return  # another process had it: that its user is gone must do
        url = f"{self._address.endpoint}/{self._address.bucket}"
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{session_id}/"}
        request = AWSRequest("GET", url, params=query)
        S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", REGION).add_auth(request)
        with _store_errors("say whether a key is revoked"):
            async with self._http.get(
                url, params=query, headers=dict(request.headers.items()), allow_redirects=False
            ) as answer:
                if answer.status != REFUSED:
                    raise MountFailed(f"the store still answers {key.user}: {answer.status}")


def _users_of(session_id: str) -> str:
    return f"holdfast_{session_id}_" if session_id else "holdfast_"


def _plain(host: str) -> str:
    """As it can stand in a policy's name, between underscores."""
    return re.sub("[^A-Za-z0-9-]", "-", host)


def _is_of(host: str, user: str, mounted: Container[str]) -> bool:
    """Whether the user is of this host, for a session that it does not have mounted."""
    session_id, _, owner = user.removeprefix(_users_of("")).partition("_")
    return owner.startswith(f"{_plain(host)}_") and session_id not in mounted


def _policy_arn(name: str) -> str:
    return f"arn:aws:iam:::policy/{name}"


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
