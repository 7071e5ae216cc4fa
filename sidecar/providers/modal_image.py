"""The sandbox's image, built by Modal from sandbox-image/Dockerfile."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import modal

from sidecar.providers.cloud import map_errors
from sidecar.providers.modal import CREATE_ERRORS, ModalAccount, opened

BUILD_SECONDS = 3600
STAGE = re.compile(r"^FROM +(\S+)(?: +AS +(\S+))?", re.IGNORECASE)
COPIED_FROM = re.compile(r"--from=(\S+)")


async def build_image(
    account: ModalAccount,
    checkout: Path,
    build_args: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """The id of the image, for `HOLDFAST_MODAL_IMAGE`. Modal keeps images by what they are made
    from, so a second build of the same files does nothing. `say` hears only where to look: the
    SDK shows the log of a build to a terminal, and to nobody else.

    Raises: Unauthorized, InvalidSpec, RateLimited, Unreachable.
    """
    if say is not None:
        say(f"Modal builds it, unless it is there already; the log is in its app {account.app!r}")
    text = (checkout / "sandbox-image" / "Dockerfile").read_text()
    with map_errors(CREATE_ERRORS, "build"), tempfile.TemporaryDirectory() as place:
        dockerfile = Path(place) / "Dockerfile"
        dockerfile.write_text(needed(text))
        async with asyncio.timeout(BUILD_SECONDS), opened(account) as client:
            app = await modal.App.lookup.aio(account.app, client=client, create_if_missing=True)
            image = modal.Image.from_dockerfile(
                dockerfile, context_dir=checkout, build_args=dict(build_args or {})
            )
            # without our entrypoint: see `image_of`
            built = await image.entrypoint([]).build.aio(app)
            return built.object_id


def needed(dockerfile: str) -> str:
    """Without the stages that the last one is not made of. The context goes by what is copied, and
    a change of what only they copy would be a build of an image that is the same."""
    head, *stages = re.split(r"^(?=FROM )", dockerfile, flags=re.MULTILINE | re.IGNORECASE)
    kept: set[int] = set()
    wanted = [len(stages) - 1]
    names = {found[2]: number for number, found in enumerate(map(STAGE.match, stages)) if found}
    while wanted:
        number = wanted.pop()
        kept.add(number)
        found = STAGE.match(stages[number])
        sources = {found[1] if found else "", *COPIED_FROM.findall(stages[number])}
        wanted += [names[name] for name in sources & names.keys() if names[name] not in kept]
    return head + "".join(stages[number] for number in sorted(kept))
