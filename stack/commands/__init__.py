"""The user commands: everything that `holdfast` does over the api."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the user commands to the root app."""
    # Here and not above: matrix_test itself uses this package's terminal.
    import matrix_test
    from stack.commands import files, run, sessions, tokens, turns, usage

    app.command("new")(sessions.new)
    app.command("run")(run.run)
    app.command("ls")(sessions.ls)
    app.command("show")(sessions.show)
    app.command("files")(files.files)
    app.command("cat")(files.cat)
    app.command("turns")(turns.turns)
    app.command("receipt")(turns.receipt)
    app.command("leaks")(turns.leaks)
    app.command("budget")(usage.budget)
    app.command("kill")(sessions.kill)
    app.command("destroy")(sessions.destroy)
    app.command("rm")(sessions.rm)
    app.command("audit")(tokens.audit)
    app.add_typer(tokens.tokens, name="token")
    app.command("matrix")(matrix_test.matrix)
