"""`doctor --provider`: a cloud, step by step, as the sidecar sees it."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from stack.clouds import ACCOUNTS, Cloud, environment, module, running
from stack.commands.terminal import command, console, safe, styled
from stack.embedded.credentials import load_credentials
from stack.embedded.layout import Layout
from stack.embedded.ports import StorePorts
from stack.embedded.services import Wiring, sidecar_part
from stack.embedded.state import running_state
from stack.errors import PartFailed
from stack.install.everything import find_everything
from stack.screen import put_json
from stack.settings import Settings, load_settings

REACHED = ("gateway_url", "store_url", "s3_bucket", "workspace", "checkpoint_seconds")
COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}
WIDTH = 18


@command
async def examine_cloud(provider: Cloud, *, box: bool, as_json: bool) -> int:
    """Shows each step as it is done. Exit code 1 when something must be done."""
    settings = load_settings()
    given = of_the_sidecar(settings) if box else of_the_account(settings, provider)
    words = (provider.value, "--json", *(["--box"] if box else []))
    steps: list[dict[str, Any]] = []
    async with running(module("sidecar.doctor", *words), given) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            steps.append(json.loads(line))
            if not as_json:
                console().print(_row(**steps[-1]))
        code = await process.wait()
    if as_json:
        put_json({"checks": steps})
    return 0 if code == 0 else 1


def of_the_account(settings: Settings, provider: Cloud) -> dict[str, str]:
    """One account, and where sandboxes are to find us: what can be looked at without a stack."""
    return environment(settings, (*ACCOUNTS[provider], *REACHED))


def of_the_sidecar(settings: Settings) -> dict[str, str]:
    """All that the running sidecar has: a sandbox gets a key of the store and a gateway's session.

    Raises: PartFailed, when the stack does not run; InstallFailed, BinaryMissing.
    """
    layout = Layout.of(settings)
    state = running_state(layout)
    if state is None or state.phase != "ready":
        raise PartFailed(
            "the stack does not run", hint="`holdfast up`: a sandbox needs its gateway and store"
        )
    ports = {name: state.ports[name] for name in StorePorts.__dataclass_fields__}
    wiring = Wiring(
        settings,
        layout,
        find_everything(settings),
        load_credentials(layout, settings),
        StorePorts(**ports),
        after_crash=False,
    )
    return dict(sidecar_part(wiring).env)


def _row(check: str, level: str, found: str, advice: str) -> Text:
    row = styled(f"{level:<5}", COLOURS[level])
    row.append(f"{safe(check):<{WIDTH}}", style="default")
    row.append(safe(found), style="default")
    if advice:
        row.append(f"\n{'':<5}{'':<{WIDTH}}→ {safe(advice)}", style=COLOURS[level])
    return row
