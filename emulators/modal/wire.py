"""gRPC as Modal's SDK speaks it: the generated services, answered by plain methods."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, ClassVar

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream

TOKEN_SECONDS = 3600
CLIENT, WORKER = "client", "worker"  # whom a token opens to: the control plane, or a worker


class Service:
    """One gRPC service. A method with the name of an RPC takes the request and returns the answer;
    where answers stream it yields them, where requests stream it takes an iterator. What has no
    method is UNIMPLEMENTED, by name."""

    generated: ClassVar[Any]

    def __mapping__(self) -> dict[str, Handler]:
        known: Mapping[str, Handler] = self.generated.__mapping__(_AnyName())
        return {
            path: handler._replace(func=self._handled(path.rpartition("/")[2], handler.cardinality))
            for path, handler in known.items()
        }

    def admit(self, rpc: str, metadata: Mapping[str, str]) -> None:
        """Raises: GRPCError."""
        raise NotImplementedError

    def _handled(
        self, rpc: str, cardinality: Cardinality
    ) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
        method: Any = getattr(self, rpc, None)

        async def handle(stream: Stream[Any, Any]) -> None:
            if method is None:
                raise GRPCError(Status.UNIMPLEMENTED, f"{rpc} is not emulated")
            assert stream.metadata is not None
            # every key that is looked at is plain text
            self.admit(rpc, {key: str(value) for key, value in stream.metadata.items()})
            if cardinality is Cardinality.STREAM_UNARY:
                await stream.send_message(await method(_messages(stream)))
                return
            request = await stream.recv_message()
            if cardinality is Cardinality.UNARY_STREAM:
                async for answer in method(request):
                    await stream.send_message(answer)
            else:
                await stream.send_message(await method(request))

        return handle


class Tokens:
    """Short-lived tokens. The SDK reads when they end, and nothing else."""

    def __init__(self) -> None:
        self._issued: dict[str, str] = {}

    def issue(self, what_for: str) -> str:
        ends = int(time.time()) + TOKEN_SECONDS
        token = ".".join(map(_encoded, ({"alg": "none"}, {"exp": ends}, secrets.token_hex(16))))
        self._issued[token] = what_for
        return token

    def check(self, token: str, what_for: str) -> None:
        """Raises: GRPCError."""
        if self._issued.get(token) != what_for:
            raise GRPCError(Status.UNAUTHENTICATED, "Token is invalid or expired")


class _AnyName:
    """Stands for a service while its mapping is read: the methods in it are not called."""

    def __getattr__(self, name: str) -> None:
        return None


def _encoded(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


async def _messages(stream: Stream[Any, Any]) -> AsyncIterator[Any]:
    while (message := await stream.recv_message()) is not None:
        yield message
