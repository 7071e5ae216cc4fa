"""Passing a request on to a real model API, with the real key."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import httpx
from pydantic import SecretStr

from sidecar.gateway.exchange import Exchange
from sidecar.gateway.families import Family, error_body, key_header
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


class Upstream:
    """One family's model API."""

    def __init__(
        self, family: Family, base_url: str, key: SecretStr, client: httpx.AsyncClient
    ) -> None:
        self._family = family
        self._base = base_url.rstrip("/").removesuffix("/v1")  # vendors' docs give it either way
        self._key = key
        self._client = client

    async def relay(self, exchange: Exchange, body: bytes) -> None:
        """Answer `exchange` with what the model API answers, byte by byte as it comes."""
        request = self._request(exchange, body)
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            await exchange.answer(502, error_body(self._family, 502, self._unreachable(error)))
            return
        try:
            headers = _kept(response.headers, _NOT_RETURNED)
            await exchange.stream(response.status_code, headers, response.aiter_raw())
        except httpx.TransportError as error:
            # too late for a status: the answer stays cut off, which every client notices
            exchange.status = 502
            logger.warning("family=%s stream broke: %s", self._family, type(error).__name__)
        finally:
            await response.aclose()

    def _request(self, exchange: Exchange, body: bytes) -> httpx.Request:
        url = self._base + exchange.path + (f"?{exchange.query}" if exchange.query else "")
        headers = httpx.Headers(_kept(exchange.headers, _NOT_FORWARDED))
        # the answer is passed on as it is, so it must come in a form the harness asked for
        headers.setdefault("accept-encoding", "identity")
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
