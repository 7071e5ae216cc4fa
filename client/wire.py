"""One HTTP exchange with the api: addresses, the token, and the errors of the wire as ours."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, SecretStr, ValidationError

from client.settings import UP_HINT
from contracts import errors
from contracts.bodies import SessionPatch

B = TypeVar("B", bound=BaseModel)
Params = Mapping[str, str | int | bool | None]

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# Killing and deleting wait for sandboxes, mounts and any number of objects to go.
SLOW_TIMEOUT = httpx.Timeout(300.0, connect=5.0)
# An error body is a few hundred bytes; one that is larger did not come from our api.
MAX_ERROR_BYTES = 1 << 20

# httpx's tree, most exact first. Every RequestError is caught by the last row.
HTTPX_ERRORS: tuple[tuple[type[Exception], type[errors.HoldfastError], str], ...] = (
    (httpx.InvalidURL, errors.InvalidInput, "is not an address"),
    (httpx.UnsupportedProtocol, errors.InvalidInput, "is not an http address"),
    (httpx.LocalProtocolError, errors.InvalidInput, "cannot be asked this way"),
    (httpx.ConnectTimeout, errors.Unavailable, "did not accept a connection in time"),
    (httpx.ConnectError, errors.Unavailable, "does not accept connections"),
    (httpx.TimeoutException, errors.Unavailable, "did not answer in time"),
    (httpx.RequestError, errors.Unavailable, "broke the connection"),
)

# For answers that are not in our shape: something stands between us and the api.
BY_STATUS: Mapping[int, type[errors.HoldfastError]] = {
    400: errors.BadRequest,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    416: errors.RangeNotSatisfiable,
    429: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def segment(text: str) -> str:
    """`text` as one segment of an address; dots are escaped where they would mean a directory."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def segments(path: str) -> str:
    """A workspace path as it stands in an address: nothing in it can reach another route."""
    return "/".join(segment(part) for part in path.split("/"))


def build(cls: type[B], **fields: Any) -> B:
    """A request body.

    Raises: InvalidInput when a field is out of bounds.
    """
    try:
        return cls(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise errors.InvalidInput(f"{where}: {first['msg']}") from error


class Wire:
    """Asks the api at `url` with `token`. The httpx client is the caller's to close."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, token: SecretStr, name: str | None = None
    ) -> None:
        self._http = http
        self._named = {} if name is None else {"X-Holdfast-Client": name}
        self._url = url.rstrip("/")
        self._token = token

    async def call(
        self,
        method: str,
        path: str,
        answer: type[B],
        *,
        body: BaseModel | None = None,
        params: Params | None = None,
        limits: httpx.Timeout = TIMEOUT,
        accept: frozenset[int] = frozenset(),
    ) -> B:
        """One request, one JSON answer. Statuses in `accept` count as good.

        Raises: any HoldfastError; Unavailable when nothing answers.
        """
        async with self.open(
            method, path, body=body, params=params, limits=limits, accept=accept
        ) as response:
            content = await response.aread()
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise errors.HoldfastError(
                f"{method} {path} answered something that is not a {answer.__name__}",
                hint="client and stack are of different versions, or this is not a Holdfast api",
            ) from error

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        limits: httpx.Timeout = TIMEOUT,
        accept: frozenset[int] = frozenset(),
    ) -> AsyncIterator[httpx.Response]:
        """A request whose answer is read by the caller; its status is good already.

        Raises: any HoldfastError, also while the caller reads.
        """
        secret = self._token.get_secret_value()
        sent = {"Authorization": f"Bearer {secret}", **self._named, **(headers or {})}
        if body is not None:
            # what a patch names is changed, also to null
            patch = isinstance(body, SessionPatch)
            content = body.model_dump_json(exclude_unset=patch, exclude_none=not patch).encode()
            sent["Content-Type"] = "application/json"
        with map_errors(self._url):
            async with self._http.stream(
                method,
                self._url + path,
                params={key: value for key, value in (params or {}).items() if value is not None},
                content=content,
                headers=sent,
                timeout=limits,
            ) as response:
                if not (response.is_success or response.status_code in accept):
                    raise await _error_of(response)
                yield response


@contextmanager
def map_errors(url: str) -> Iterator[None]:
    """httpx's errors as ours. The address is told without what might be secret in it."""
    try:
        yield
    except (httpx.RequestError, httpx.InvalidURL) as error:
        for theirs, ours, text in HTTPX_ERRORS:
            if isinstance(error, theirs):
                message = f"{_shown(url)} {text}"
                hint = UP_HINT if issubclass(ours, errors.Unavailable) else "check HOLDFAST_URL"
                raise ours(message, hint=hint) from error
        raise


def _shown(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "the url"


async def _error_of(response: httpx.Response) -> errors.HoldfastError:
    """The error in a bad answer: the one its body tells, else one chosen by its status."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MAX_ERROR_BYTES:
            break
    try:
        body = json.loads(bytes(content))["error"]
        return errors.from_body(body)
    except (ValueError, KeyError, TypeError):
        cls = BY_STATUS.get(response.status_code, errors.HoldfastError)
        hint = "check HOLDFAST_TOKEN" if cls is errors.Unauthenticated else ""
        return cls(f"the api answered HTTP {response.status_code}", hint=hint)
