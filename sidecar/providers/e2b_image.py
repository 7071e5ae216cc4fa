"""The template that sandboxes are made of, built by E2B from sandbox-image/Dockerfile.

E2B's builder knows one stage, in which every step runs in the template itself. So the stages that
the sandbox needs are run one after the other, what they copy from each other is there already, and
what only they needed is removed at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import e2b
from e2b.template.main import TemplateBuilder
from e2b_dockerfile_utils import DockerfileInstruction, parse_dockerfile_ast

from contracts.errors import InvalidSpec
from sidecar.providers.cloud import map_errors
from sidecar.providers.e2b import CREATE_ERRORS, RETRIES, E2BAccount

BUILD_SECONDS = 3600
CPUS = 2
MEMORY_MB = 4096  # a harness, its tools, and a compiler
DEFAULT_TAG = "default"
AGENT, HOME = "agent", "/home/agent"
# They would start boxd, which the provider does, with a token; or they mean nothing to E2B.
LEFT_OUT = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "USER", "VOLUME")
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
# E2B's own user is made before the first step, and takes the uid that the image gives the agent.
MAKE_ROOM = "if id user; then groupmod --gid 1900 user && usermod --uid 1900 user; fi"
UV_IMAGE = "ghcr.io/astral-sh/uv:"
INSTALL_UV = (
    "apt-get update && apt-get install -y --no-install-recommends python3-venv"
    " && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/uv"
    " && /opt/uv/bin/pip install --no-cache-dir uv=={version}"
    " && cp /opt/uv/bin/uv {to} && rm -rf /opt/uv"
)


async def build_image(
    account: E2BAccount,
    checkout: Path,
    build_args: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> str:
    """The name of the template with the tag of its content, for `HOLDFAST_E2B_TEMPLATE`; the name
    alone, `account.template`, means the newest one. Where there is a finished build of the same
    content, nothing is done; `say` hears of a build.

    Raises: Unauthorized, InvalidSpec, RateLimited, Unreachable.
    """
    params = account.params(RETRIES)
    with map_errors(CREATE_ERRORS, "build"):
        async with asyncio.timeout(BUILD_SECONDS):
            template = await asyncio.to_thread(template_of, checkout, build_args or {})
            shown = await asyncio.to_thread(e2b.AsyncTemplate.to_json, template)
            tag = hashlib.sha256(f"{CPUS} {MEMORY_MB} {shown}".encode()).hexdigest()[:16]
            name = f"{account.template.partition(':')[0]}:{tag}"
            if not await e2b.AsyncTemplate.exists(name, **params):
                await e2b.AsyncTemplate.build(
                    template,
                    name,
                    tags=[DEFAULT_TAG],
                    cpu_count=CPUS,
                    memory_mb=MEMORY_MB,
                    on_build_logs=lambda entry: say(entry.message) if say else None,
                    **params,
                )
    return name


def template_of(checkout: Path, build_args: Mapping[str, str]) -> TemplateBuilder:
    """sandbox-image/Dockerfile of a checkout, in one stage. Raises: InvalidSpec."""
    text = (checkout / "sandbox-image" / "Dockerfile").read_text()
    instructions = parse_dockerfile_ast(text).instructions
    stages, arguments = _stages(instructions, build_args)
    order = list(_needed(stages[-1], stages))
    bases = {stage.base for stage in order if _named(stages, stage.base) is None}
    if len(bases) != 1:
        raise InvalidSpec(f"stages of different images: {', '.join(sorted(bases))}", op="build")
    template = e2b.AsyncTemplate(file_context_path=checkout).from_image(bases.pop())
    template.set_user("root").run_cmd(MAKE_ROOM)
    made = _Steps(template, checkout, {**arguments, **build_args}, [s.name for s in order])
    for stage in order:
        made.enter(stage.base)
        for instruction in stage.instructions:
            made.take(instruction)
        made.end(stage.name)
    made.clean()
    return template


@dataclass
class _Stage:
    name: str
    base: str
    instructions: list[DockerfileInstruction] = field(default_factory=list)


def _stages(
    instructions: Sequence[DockerfileInstruction], build_args: Mapping[str, str]
) -> tuple[list[_Stage], dict[str, str]]:
    """The stages in their order, and the arguments that hold for their FROM lines."""
    stages: list[_Stage] = []
    arguments: dict[str, str] = {}
    for instruction in instructions:
        if instruction.name == "FROM":
            words = [_expanded(word, arguments) for word in instruction.args]
            name = words[2] if len(words) == 3 else str(len(stages))
            stages.append(_Stage(name, words[0]))
        elif stages:
            stages[-1].instructions.append(instruction)
        elif instruction.name == "ARG":
            arguments |= _declared(instruction, build_args)
    return stages, arguments


def _named(stages: Sequence[_Stage], name: str) -> _Stage | None:
    return next((stage for stage in stages if stage.name == name), None)


def _needed(stage: _Stage, stages: Sequence[_Stage]) -> Iterator[_Stage]:
    """What has to be run for this stage, each once, itself at the end."""
    seen: dict[str, _Stage] = {}

    def visit(each: _Stage) -> None:
        names = [each.base, *filter(None, map(_source, each.instructions))]
        for before in filter(None, (_named(stages, name) for name in names)):
            visit(before)
        seen.setdefault(each.name, each)

    visit(stage)
    yield from seen.values()


def _source(instruction: DockerfileInstruction) -> str:
    """The stage or image that a COPY copies from."""
    given = [flag.partition("=")[2] for flag in instruction.flags if flag.startswith("--from=")]
    return given[0] if given else ""


class _Steps:
    """Instructions of a Dockerfile as steps of a template."""

    def __init__(
        self,
        template: TemplateBuilder,
        checkout: Path,
        arguments: Mapping[str, str],
        stages: Sequence[str],
    ) -> None:
        self._template = template
        self._checkout = checkout
        self._arguments = arguments
        self._stages = stages
        self._workdir = "/"
        self._left_at: dict[str, str] = {}
        self._rubbish: set[str] = set()

    def enter(self, base: str) -> None:
        """A stage begins where the one that it is based on has ended."""
        self._workdir = self._left_at.get(base, "/")
        self._template.set_workdir(self._workdir)

    def end(self, name: str) -> None:
        self._left_at[name] = self._workdir

    def clean(self) -> None:
        """Without what only the build needed, and as a box is to begin."""
        self._template.set_workdir("/")
        self._template.run_cmd(shlex.join(("rm", "-rf", *sorted(self._rubbish))))
        self._template.set_user(AGENT).set_workdir(HOME)

    def take(self, instruction: DockerfileInstruction) -> None:
        """Raises: InvalidSpec."""
        args = instruction.args
        if instruction.name == "RUN":
            self._run(instruction)
        elif instruction.name == "COPY":
            self._copy(args[:-1], args[-1], _source(instruction))
        elif instruction.name == "ENV":
            self._template.set_envs(dict(zip(args[::3], args[1::3], strict=True)))
        elif instruction.name == "ARG":
            self._template.set_envs(_declared(instruction, self._arguments))
        elif instruction.name == "WORKDIR":
            self._workdir = posixpath.join(self._workdir, args[0])
            self._template.set_workdir(self._workdir)
            if not self._workdir.startswith("/home/"):
                self._rubbish.add(self._workdir)
        elif instruction.name not in LEFT_OUT:
            raise InvalidSpec(f"E2B has no {instruction.name}: {instruction.original}", op="build")

    def _run(self, instruction: DockerfileInstruction) -> None:
        for flag in instruction.flags:
            mount = dict(part.partition("=")[::2] for part in flag.split(","))
            if mount.get("--mount") != "type=cache":
                raise InvalidSpec(f"E2B has no such mount: {flag}", op="build")
            self._rubbish.add(mount["target"])  # a cache is a directory there
        command = shlex.join(instruction.args) if instruction.json else instruction.args[0]
        self._template.run_cmd(command)

    def _copy(self, sources: Sequence[str], to: str, stage: str) -> None:
        to = posixpath.join(self._workdir, to)
        if stage.startswith(UV_IMAGE):
            version = stage.removeprefix(UV_IMAGE)
            self._template.run_cmd(INSTALL_UV.format(version=version, to=shlex.quote(to)))
            self._rubbish.add(to)
        elif stage in self._stages:
            for source in sources:
                if source != to:
                    self._template.run_cmd(shlex.join(("cp", "-aT", source, to)))
        elif stage:
            raise InvalidSpec(f"E2B cannot copy from the image {stage}", op="build")
        else:
            for source in sources:
                for path in sorted(self._checkout.glob(source.rstrip("/"))):
                    self._template.copy(path.relative_to(self._checkout), to)


def _declared(instruction: DockerfileInstruction, given: Mapping[str, str]) -> dict[str, str]:
    pairs = (arg.partition("=")[::2] for arg in instruction.args)
    return {name: given.get(name, default) for name, default in pairs}


def _expanded(word: str, arguments: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda match: arguments.get(match[1] or match[2], ""), word)
