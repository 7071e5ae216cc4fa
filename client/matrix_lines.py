"""The matrix as a process of its own: `python -m client.matrix_lines`.

One line of JSON on stdin says what to run, and against which stack: no secret stands on a command
line. Each step and each verdict is a line of JSON on stdout. It ends when stdin does, so that it
never outlives whoever asked for it; the session of a cell that is cut off is removed.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic import BaseModel, ConfigDict, SecretStr

from client.holdfast import Holdfast
from client.matrix import News, run_matrix
from client.settings import Store
from client.trials import Engine, How
from contracts.errors import HoldfastError

LONGEST_LINE = 1 << 20


class Order(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    token: SecretStr
    store: Store
    harnesses: list[str]
    providers: list[str]
    engine: Engine = "auto"


class Failed(BaseModel):
    """The last line, when there is no verdict for every cell."""

    failed: str


def put(line: BaseModel) -> None:
    sys.stdout.write(line.model_dump_json() + "\n")
    sys.stdout.flush()


async def _run(order: Order) -> None:
    def tell(news: News) -> None:
        put(news)

    async with Holdfast(order.url, order.token, name="matrix") as hf:
        await run_matrix(
            hf,
            order.store,
            harnesses=order.harnesses,
            providers=order.providers,
            how=How(order.engine, elsewhere=True),
            tell=tell,
        )


async def main() -> int:
    reader = asyncio.StreamReader(limit=LONGEST_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    order = Order.model_validate_json(await reader.readline())
    work = asyncio.create_task(_run(order))
    hung_up = asyncio.create_task(reader.read())
    await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
        return 1
    hung_up.cancel()
    try:
        work.result()
    except HoldfastError as error:
        put(Failed(failed=error.message))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
