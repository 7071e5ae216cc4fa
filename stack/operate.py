"""The operating commands: what `holdfast up`, `down` and the like do."""

from __future__ import annotations

import asyncio
import time

import typer

from contracts.errors import NotFound
from contracts.hardening import no_core_dumps
from stack.commands.terminal import console, styled
from stack.embedded.control import (
    remove_data,
    start_detached,
    stop_stack,
    wait_until_gone,
    wait_until_ready,
)
from stack.embedded.layout import Layout
from stack.embedded.stack import run_stack
from stack.embedded.state import StackState, running_state
from stack.install.everything import Installed, install_everything
from stack.logfiles import LogFiles
from stack.screen import InstallView, LogView, PartsView, put_json, put_url
from stack.settings import Settings, load_settings
from stack.status import login_url

_FOLLOW_SECONDS = 0.2


def up(*, detach: bool, as_json: bool) -> None:
    """Start the stack, or say that it is running already.

    Raises:
        HoldfastError: what kept it from coming up.
    """
    settings = load_settings()
    layout = Layout.of(settings)
    if _join_running(settings, layout, as_json=as_json):
        return
    install_quietly(settings, as_json=as_json)
    if detach:
        state = start_detached(settings, PartsView("ready", quiet=as_json))
        _announce(settings, state, as_json=as_json, already=False)
        return

    def ready(state: StackState) -> None:
        _announce(settings, state, as_json=as_json, already=False)

    no_core_dumps()
    asyncio.run(run_stack(settings, sink=LogView(as_json=as_json), on_ready=ready))


def down(*, as_json: bool) -> None:
    """Stop the stack.

    Raises:
        HoldfastError: something cannot be ended.
    """
    settings = load_settings()
    started = time.monotonic()
    stopped = stop_stack(settings, PartsView("stopped", quiet=as_json))
    seconds = time.monotonic() - started
    if as_json:
        put_json(
            {
                "was_running": stopped.was_running,
                "leftovers": stopped.leftovers,
                "seconds": round(seconds, 1),
            }
        )
    elif stopped.was_running:
        console().print(styled(f"stopped after {seconds:.1f} s; the data is in {settings.data}"))
    elif stopped.leftovers:
        names = ", ".join(stopped.leftovers)
        console().print(styled(f"the supervisor had died; ended what it left: {names}"))
    else:
        console().print(styled("not running"))


def install(*, as_json: bool) -> None:
    """Install what is missing and say what is there.

    Raises:
        HoldfastError: something could not be installed.
    """
    settings = load_settings()
    found = install_quietly(settings, as_json=as_json)
    engine, why = found.engine(settings.workspace)
    if as_json:
        put_json(
            {
                "harness_dir": str(found.tree.path),
                "fresh": found.tree.fresh,
                "megabytes": found.tree.megabytes,
                "seconds": round(found.tree.seconds, 1),
                "versions": dict(found.tree.versions),
                "node": str(found.node.path),
                "engine": engine,
                "engine_why": why,
            }
        )
        return
    if not found.tree.fresh:
        console().print(styled(f"harnesses are installed in {found.tree.path}"))
    console().print(styled(f"workspaces by {engine}: {why}"))


def clean_data(*, yes: bool, as_json: bool) -> None:
    """Remove the data directory.

    Raises:
        HoldfastError: the stack runs, or the directory is not safe to remove.
    """
    settings = load_settings()
    if not yes:
        question = f"Remove {settings.data} with all sessions, files and transcripts?"
        typer.confirm(question, abort=True, err=True)
    size = remove_data(settings)
    if as_json:
        put_json({"data_dir": str(settings.data), "bytes": size})
    else:
        console().print(styled(f"removed {settings.data} ({size / 1e6:.0f} MB)"))


def show_logs(part: str | None, *, follow: bool, lines: int, as_json: bool) -> None:
    """Show the newest lines, then, with `follow`, new ones until Ctrl-C.

    Raises:
        NotFound: there is no log of that part.
    """
    directory = Layout.of(load_settings()).logs
    names = sorted(path.stem for path in directory.glob("*.log"))
    if part is not None and part not in names:
        raise NotFound(
            f"there is no log of {part!r}",
            hint=f"there are: {', '.join(names)}" if names else "the stack has not run yet",
        )
    files = LogFiles(directory, part)
    show = LogView(as_json=as_json, everything=part is not None)
    for line in files.last(lines):
        show(line)
    while follow:
        for line in files.new():
            show(line)
        time.sleep(_FOLLOW_SECONDS)


def _join_running(settings: Settings, layout: Layout, *, as_json: bool) -> bool:
    """When the stack runs: say so, after it is ready. One that is stopping is waited out."""
    state = running_state(layout)
    if state is None:
        return False
    if state.phase == "stopping":
        console(stderr=True).print(styled("waiting for the stack to stop first"))
        wait_until_gone(layout, PartsView("stopped", quiet=as_json))
        return False
    ready = wait_until_ready(layout, PartsView("ready", quiet=as_json or state.phase == "ready"))
    if ready is None:
        return False
    _announce(settings, ready, as_json=as_json, already=True)
    return True


def install_quietly(settings: Settings, *, as_json: bool) -> Installed:
    """Install what is missing; says only what was."""
    view = InstallView(quiet=as_json)
    found = install_everything(settings, view)
    tree = found.tree
    if tree.fresh:
        view.say(f"harnesses: {tree.megabytes} MB in {tree.seconds:.0f} s, in {tree.path}")
    return found


def _announce(settings: Settings, state: StackState, *, as_json: bool, already: bool) -> None:
    address = login_url(Layout.of(settings), state)
    if as_json:
        put_json(
            {
                "url": state.url,
                "login_url": address,
                "pid": state.supervisor["pid"],
                "ready_after": state.ready_after,
                "engine": state.engine,
                "already_running": already,
            }
        )
        return
    if already:
        console().print(styled("the stack is running already"))
    put_url(address)
