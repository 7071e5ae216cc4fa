"""Passing a request on to a real model API, with the real key."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import Iterable, Mapping

import httpx
from pydantic import SecretStr

from sidecar.gateway.exchange import Exchange
from sidecar.gateway.families import Family, error_body, key_header
from sidecar.gateway.metering.request import ModelRequest
from sidecar.gateway.settings import Settings

logger = logging.getLogger(__name__)

# A model may think for minutes between two bytes; only a silence longer than that is a fault.
_IDLE_SECONDS = 900.0
TIMEOUT = httpx.Timeout(connect=10.0, read=_IDLE_SECONDS, write=60.0, pool=10.0)
# No ceiling: a session must never wait for another one's stream to end.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# The sandbox's own token and cookies never leave, whatever it sends.
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "content-length", "authorization", "x-api-key", "cookie"}
_NOT_RETURNED = _HOP_BY_HOP | {"set-cookie"}


@functools.cache
def trusted_authorities() -> ssl.SSLContext:
    """Whom model APIs are checked against; loaded once, which takes 50 ms of CPU."""
    return httpx.create_ssl_context()


class Upstream:
    """One family's model API."""

    def __init__(
        self, family: Family, base_url: str, key: SecretStr, client: httpx.AsyncClient
    ) -> None:
        self._family = family
        self._base = base_url.rstrip("/").removesuffix("/v1")  # vendors' docs give it either way
        self._key = key
        self._client = client

    async def relay(
        self,
        exchange: Exchange,
        body: bytes,
        request: ModelRequest | None = None,
        *,
        asked_for_usage: bool = False,
    ) -> None:
        """Answer `exchange` with what the model API answers, byte by byte as it comes. `request` is
        told all of it. `asked_for_usage`: the body is ours, and the client did not ask."""
        sent = self._request(exchange, body, rewritten=asked_for_usage)
        try:
            response = await self._client.send(sent, stream=True)
        except httpx.TransportError as error:
            message = self._unreachable(error)
            if request is not None:
                request.failed(502, message)
            await exchange.answer(502, error_body(self._family, 502, message))
            return
        secret = self._key.get_secret_value()
        status, chunks = response.status_code, response.aiter_raw()
        if request is not None:
            chunks = request.watch(
                status, response.headers, chunks, secret=secret, hide_usage=asked_for_usage
            )
        try:
            headers = [
                pair
                for pair in _kept(response.headers, _NOT_RETURNED)
                if secret.encode("latin-1", "replace") not in pair[1]
            ]
            await exchange.stream(status, headers, chunks)
        except httpx.TransportError as error:
            # too late for a status: the answer stays cut off, which every client notices
            exchange.status = 502
            if request is not None:
                request.failed(502, f"the model API broke off its answer ({type(error).__name__})")
            logger.warning("family=%s stream broke: %s", self._family, type(error).__name__)
        finally:
            await response.aclose()

    def _request(self, exchange: Exchange, body: bytes, *, rewritten: bool) -> httpx.Request:
        url = self._base + exchange.path + (f"?{exchange.query}" if exchange.query else "")
        dropped = _NOT_FORWARDED | ({"content-encoding"} if rewritten else set())
        headers = httpx.Headers(_kept(exchange.headers, dropped))
        # it is read on its way, and every client takes an answer as it is
        headers["accept-encoding"] = "identity"
        name, value = key_header(self._family, self._key.get_secret_value())
        headers[name] = value
        return httpx.Request(
            exchange.method,
            url,
            headers=headers,
            content=body or None,
            extensions={"timeout": TIMEOUT.as_dict()},
        )

    def _unreachable(self, error: httpx.TransportError) -> str:
        host = httpx.URL(self._base).host
        return (
            f"The gateway cannot reach the model API at {host} ({type(error).__name__}). "
            "Check the network and the base URL, or remove the key to use the scripted model."
        )


def upstreams(settings: Settings, client: httpx.AsyncClient) -> dict[Family, Upstream]:
    """The families that have a key."""
    found: dict[Family, Upstream] = {}
    if settings.anthropic_api_key:
        base = str(settings.anthropic_base_url)
        found["anthropic"] = Upstream("anthropic", base, settings.anthropic_api_key, client)
    if settings.openai_api_key:
        base = str(settings.openai_base_url)
        found["openai"] = Upstream("openai", base, settings.openai_api_key, client)
    return found


def _kept(headers: Mapping[str, str], dropped: Iterable[str]) -> list[tuple[bytes, bytes]]:
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    leave_out = named.union(dropped)
    pairs = headers.multi_items() if isinstance(headers, httpx.Headers) else headers.items()
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in pairs
        if name.lower() not in leave_out
    ]
