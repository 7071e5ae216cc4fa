"""Health, readiness, what the stack can do, and which sandboxes exist."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from api.services import Use
from contracts.bodies import Capabilities, Health, LeakList, Readiness, SandboxList
from contracts.errors import HoldfastError

router = APIRouter(tags=["system"])

CHECK_WITHIN = 5.0


@router.get("/healthz")
async def health() -> Health:
    """Whether the api answers."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness}})
async def readiness(services: Use, response: Response) -> Readiness:
    """Whether all that the api needs answers it; 503 when something does not."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            "database": group.create_task(_told(services.database.check)),
            "store": group.create_task(_told(services.stores.check_writing)),
            "sidecar": group.create_task(_told(services.sidecar.check)),
            "audit": group.create_task(_told(services.audit.check)),
        }
    parts = {name: task.result() for name, task in tasks.items()}
    ready = all(told == "ok" for told in parts.values())
    if not ready:
        response.status_code = 503
    return Readiness(ready=ready, parts=parts)


async def _told(check: Callable[[], Awaitable[None]]) -> str:
    try:
        async with asyncio.timeout(CHECK_WITHIN):
            await check()
    except HoldfastError as error:
        return error.message
    except TimeoutError:
        return f"It did not answer within {CHECK_WITHIN:.0f} s."
    return "ok"


@router.get("/capabilities")
async def capabilities(services: Use) -> Capabilities:
    """Harnesses and providers, and what each can do."""
    return await services.sidecar.capabilities()


@router.get("/sandboxes")
async def list_sandboxes(services: Use) -> SandboxList:
    """The sandboxes that exist now: since when, with how much memory, warm until when."""
    return await services.sessions.sandboxes()


@router.get("/leaks")
async def list_leaks(services: Use) -> LeakList:
    """Sandboxes that live, or may live, and that nothing answers for, asked for now."""
    return LeakList(leaks=await services.ledger.leaks())


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(services: Use, request: Request) -> Response:
    """What Prometheus scrapes: what this process counted, and how the stack is now."""
    body, content_type = await services.scrape.answer(request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": content_type})
