"""What models were used, in words; and `budget`."""

from __future__ import annotations

from typing import Annotated

import typer

from contracts.bodies import Budget, Session, Totals
from contracts.events import Usage
from stack.commands import options as opt
from stack.commands.connect import connect
from stack.commands.terminal import command, console, put_json, styled

BudgetTokens = Annotated[
    int | None,
    typer.Option("--budget-tokens", min=1, help="Tokens the session may use, in and out."),
]
BudgetCost = Annotated[
    float | None,
    typer.Option("--budget-cost", help="Dollars the session may cost, by the table of prices."),
]


def given(tokens: int | None, cost: float | None) -> Budget | None:
    """Raises: typer.BadParameter."""
    if cost is not None and not 0 < cost < float("inf"):
        raise typer.BadParameter("a cost is a number of dollars above 0")
    return None if tokens is None and cost is None else Budget(tokens=tokens, cost=cost)


@command
async def budget(
    session: opt.SessionRef,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Tokens it may use in all, in and out.")
    ] = None,
    cost: Annotated[
        float | None, typer.Option("--cost", help="Dollars it may cost in all.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Take the budget away.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show what a session has used of its budget, or change the budget."""
    wanted = given(tokens, cost)
    if none and wanted is not None:
        raise typer.BadParameter("--none goes alone")
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        if none or wanted is not None:
            found = await hf.sessions.set_budget(found.id, wanted)
    if as_json:
        put_json(found)
    else:
        for line in session_lines(found) or ["nothing was used yet, and there is no budget"]:
            console().print(styled(line))


def plus(totals: Totals, event: Usage) -> Totals:
    cost = totals.cost if event.cost is None else (totals.cost or 0.0) + event.cost
    return Totals(
        requests=totals.requests + 1,
        input_tokens=totals.input_tokens + event.input_tokens,
        output_tokens=totals.output_tokens + event.output_tokens,
        cached_tokens=totals.cached_tokens + event.cached_tokens,
        cost=cost,
        unpriced=totals.unpriced + (event.cost is None),
        estimated=totals.estimated + event.estimated,
    )


def used(totals: Totals) -> str:
    """Totals in one line."""
    cached = f" ({totals.cached_tokens:,} cached)" if totals.cached_tokens else ""
    told = f"{totals.input_tokens:,} tokens in{cached}, {totals.output_tokens:,} out"
    told += f", {totals.requests:,} {'request' if totals.requests == 1 else 'requests'}"
    told += f", {cost_of(totals)}"
    return told + (f", {totals.estimated:,} of them estimated" if totals.estimated else "")


def cost_of(totals: Totals) -> str:
    """The cost as far as it is known; what has no price is said to have none."""
    if totals.cost is None:
        return "no price known"
    cost = f"${totals.cost:.4f}"
    return f"{cost} and {totals.unpriced:,} without a price" if totals.unpriced else cost


def session_lines(session: Session) -> list[str]:
    """What a session has used, and of what."""
    lines = [f"used: {used(session.usage)}"] if session.usage.requests else []
    if session.budget is not None:
        limits = []
        if session.budget.tokens is not None:
            spent = session.usage.input_tokens + session.usage.output_tokens
            limits.append(f"{spent:,} of {session.budget.tokens:,} tokens")
        if session.budget.cost is not None:
            limits.append(f"${session.usage.cost or 0:.4f} of ${session.budget.cost:g}")
        lines.append(f"budget: {', '.join(limits)}")
    return lines
