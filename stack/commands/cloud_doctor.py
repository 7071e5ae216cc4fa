"""`doctor --provider`: a cloud, step by step, as the sidecar sees it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
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
STEP_KEYS = {"check", "level", "found", "advice"}

Step = dict[str, Any]


@command
async def examine_cloud(provider: Cloud, *, box: bool, as_json: bool) -> int:
    """Shows each step as it is done. Exit code 1 when something must be done."""
    settings = load_settings()
    given = of_the_sidecar(settings) if box else of_the_account(settings, provider)
    words = (provider.value, "--json", *(["--box"] if box else []))
    steps: list[Step] = []
    async for step in read_steps(module("sidecar.doctor", *words), given):
        steps.append(step)
        if not as_json:
            console().print(_row(**step))
    if as_json:
        put_json({"checks": steps})
    return 1 if any(step["level"] == "fail" for step in steps) else 0


async def read_steps(argv: tuple[str, ...], given: Mapping[str, str]) -> AsyncGenerator[Step, None]:
    """Run the doctor and yield each step as it is done. A doctor that ends otherwise than its steps
    say is a failed step too."""
    failed = False
    async with running(argv, given) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            step = _read_step(line)
            failed = failed or step["level"] == "fail"
            yield step
        code = await process.wait()
    if code != 0 and not failed:
        found = f"it ended with exit code {code} although no step had failed"
        advice = "its error is above; a sandbox may be left, look into the cloud's console"
        yield {"check": "doctor", "level": "fail", "found": found, "advice": advice}


def _read_step(line: bytes) -> Step:
    """A line of the doctor; what an SDK prints beside it is shown as a warning."""
    try:
        step: Step = json.loads(line)
    except ValueError:
        step = {}
    if not isinstance(step, dict) or step.keys() != STEP_KEYS:
        said = line.decode("utf-8", "replace").strip()
        return {"check": "output", "level": "warn", "found": said, "advice": ""}
    return step


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
