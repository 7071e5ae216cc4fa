"""The harness tree with the light agent in it, beside the real harnesses."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from stack.install.tree import find_tree, harness_tree
from stack.settings import load_settings
from tests.support.requirements import missing
from tests.support.services import short_directory

HERE = Path(__file__).parent
LAUNCHER, AGENT = HERE / "pi-acp", HERE / "agent.py"
BUILD_SECONDS = 120


class Choice(TypedDict):
    """What `sessions.create` is given."""

    harness: str
    model: str


# `pi-acp` here looks at the name of the model.
LIGHT: Choice = {"harness": "pi", "model": "light-1"}


@contextlib.contextmanager
def light_agent(image: str | None = None) -> Iterator[dict[str, str]]:
    """Settings of a stack that has the light agent beside the real harnesses, for sandboxes of the
    host and, with its `image`, for containers."""
    with light_cache() as cache:
        settings = {"HOLDFAST_CACHE": str(cache)}
        if image is not None:
            settings["HOLDFAST_SANDBOX_IMAGE"] = light_image(image)
        yield settings


@contextlib.contextmanager
def light_cache() -> Iterator[Path]:
    """A cache directory whose harness tree has the light agent too.

    The files are links to those of the real tree, which is bound into boxes as a whole.
    """
    real = load_settings().cache_root
    spec = harness_tree()
    tree = find_tree(spec, real)
    if tree is None:
        missing("harnesses", "the harness tree is not installed: run `holdfast install`")
    with short_directory() as cache:
        for path in real.iterdir():
            if path.name != "harnesses":
                (cache / path.name).symlink_to(path)
        copy = cache / "harnesses" / spec.key
        shutil.copytree(tree, copy, symlinks=True, copy_function=_link_or_copy)
        (copy / "bin" / "pi-acp").rename(copy / "bin" / "real-pi-acp")
        shutil.copyfile(LAUNCHER, copy / "bin" / "pi-acp")
        shutil.copyfile(AGENT, copy / "bin" / "light-agent.py")
        for path in (cache, copy.parent, copy / "bin" / "pi-acp", copy / "bin" / "light-agent.py"):
            path.chmod(0o755)
        yield cache


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or another user's file
        shutil.copy2(source, target)


def light_image(image: str) -> str:
    """The sandbox image with the light agent beside the real harnesses, built if it is not there.

    Its name holds a hash of what it is made of, so two test runs may build it at the same time.
    """
    base = _docker("image", "inspect", "--format", "{{.Id}}", image).strip()
    recipe = (
        f"FROM {image}\nUSER root\n"
        "RUN mv /opt/harness/bin/pi-acp /opt/harness/bin/real-pi-acp\n"
        "COPY --chmod=755 pi-acp light-agent.py /opt/harness/bin/\nUSER 1000:1000\n"
    )
    files = {
        "Dockerfile": recipe.encode(),
        "pi-acp": LAUNCHER.read_bytes(),
        "light-agent.py": AGENT.read_bytes(),
    }
    made_of = base.encode() + b"".join(files.values())
    name = f"holdfast-sandbox-light:{hashlib.sha256(made_of).hexdigest()[:16]}"
    if not _docker("image", "ls", "--quiet", name):
        _docker("build", "--quiet", "--tag", name, "-", given=_pack(files))
    return name


def _pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _docker(*arguments: str, given: bytes | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments],
        input=given,
        capture_output=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
