"""/matrix/runs"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from api.services import Use
from contracts.bodies import MatrixCreate, MatrixRun, MatrixRunList

router = APIRouter(prefix="/matrix/runs", tags=["matrix"])


@router.post("", status_code=202)
async def start_matrix(body: MatrixCreate, services: Use) -> MatrixRun:
    """Kill the sandbox in every cell of harnesses x providers and see that nothing is lost."""
    return await services.matrix.start(body)


@router.get("")
async def list_matrix_runs(
    services: Use, limit: Annotated[int, Query(ge=1, le=200)] = 20
) -> MatrixRunList:
    """The last runs, newest first, without their cells."""
    return MatrixRunList(runs=await services.matrix.page(limit))


@router.get("/{rid}")
async def get_matrix_run(rid: UUID, services: Use) -> MatrixRun:
    """One run, with every cell as it stands now."""
    return await services.matrix.get(rid)


@router.post("/{rid}/cancel", status_code=202)
async def cancel_matrix_run(rid: UUID, services: Use) -> MatrixRun:
    """End a run; what its cells have made is removed."""
    return await services.matrix.cancel(rid)
