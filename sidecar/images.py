"""`python -m sidecar.images NAME --checkout DIRECTORY`: have a cloud build what it makes sandboxes
of. The account comes by environment. Prints one line of JSON; a build's log goes to stderr."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import HoldfastError, Unauthorized, UnsupportedChoice
from contracts.secret_files import secret_files
from sidecar.account_settings import AccountSettings
from sidecar.exiting import exit_process
from sidecar.providers import registry
from sidecar.settings import Settings
from sidecar.vendors import ACCOUNTS

Build = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class Kind:
    """What an image is called there, and the setting that says which one to use. Where it `tells`,
    a build can be listened to."""

    word: str
    setting: str
    tells: bool = True


KINDS: Mapping[str, Kind] = {
    "e2b": Kind("the template", "HOLDFAST_E2B_TEMPLATE"),
    "daytona": Kind("the snapshot", "HOLDFAST_DAYTONA_SNAPSHOT"),
    "modal": Kind("the image", "HOLDFAST_MODAL_IMAGE", tells=False),
}


async def build(
    name: str,
    settings: Settings,
    checkout: Path,
    build_args: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Idempotent: what is there already is only named.

    Raises: UnsupportedChoice, when the SDK or the key is missing; what the cloud refuses.
    """
    row, account, kind = registry.check(name), ACCOUNTS[name], KINDS[name]
    try:
        provider = importlib.import_module(f"sidecar.providers.{name}")
        builder: Build = importlib.import_module(f"sidecar.providers.{name}_image").build_image
    except ImportError as error:
        raise UnsupportedChoice(str(error), hint=row.install_hint) from error
    if not account.has_key(settings):
        raise UnsupportedChoice(f"{row.title} needs {account.needs}", hint="Set it in .env.")
    listening = {"say": say} if kind.tells else {}
    made = await builder(account.made(settings, provider), checkout, build_args, **listening)
    return {"name": name, "image": f"{kind.word} {made}", "settings": {kind.setting: made}}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sidecar.images", description=__doc__)
    parser.add_argument("name", choices=KINDS)
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args(argv)


def main() -> int:
    given = parse(sys.argv[1:])
    settings = AccountSettings(_secrets_dir=secret_files())
    build_args = dict(pair.partition("=")[::2] for pair in given.build_arg)
    work = build(given.name, settings, given.checkout, build_args, _say)
    try:
        made = asyncio.run(work)
    except HoldfastError as error:
        refused = "The key was refused." if isinstance(error, Unauthorized) else ""
        sys.stderr.write(f"error: {error.message}\n")
        if hint := error.hint or refused:
            sys.stderr.write(f"hint: {hint}\n")
        return 1
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line.rstrip("\n") + "\n")


if __name__ == "__main__":
    exit_process(main())
