"""Runs of the matrix that the stack itself looks after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from client.wire import SLOW_TIMEOUT, Wire, build, segment
from contracts.bodies import MatrixCreate, MatrixRun, MatrixRunList


class MatrixRuns:
    """`hf.matrix`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def start(
        self,
        *,
        harnesses: Sequence[str] | None = None,
        providers: Sequence[str] | None = None,
        engine: Literal["auto", "geesefs", "weed"] = "auto",
    ) -> MatrixRun:
        """Starts a run, and returns at once; what is left out is all that the stack knows.

        Raises: UnknownHarness, UnknownProvider, Conflict while another one runs.
        """
        body = build(
            MatrixCreate,
            harnesses=None if harnesses is None else list(harnesses),
            providers=None if providers is None else list(providers),
            engine=engine,
        )
        return await self._wire.call("POST", "/matrix/runs", MatrixRun, body=body)

    async def get(self, run_id: UUID | str) -> MatrixRun:
        """A run with its cells as they stand now. Raises: MatrixRunNotFound."""
        return await self._wire.call("GET", f"/matrix/runs/{segment(str(run_id))}", MatrixRun)

    async def list(self, limit: int = 20) -> list[MatrixRun]:
        """The last runs, newest first, without their cells."""
        params = {"limit": limit}
        return (await self._wire.call("GET", "/matrix/runs", MatrixRunList, params=params)).runs

    async def cancel(self, run_id: UUID | str) -> MatrixRun:
        """Raises: MatrixRunNotFound."""
        path = f"/matrix/runs/{segment(str(run_id))}/cancel"
        return await self._wire.call("POST", path, MatrixRun, limits=SLOW_TIMEOUT)
