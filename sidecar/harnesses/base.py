"""The harness contract: what a harness needs in its HOME and environment, and its few habits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from contracts.bodies import Permissions
from sidecar.harnesses.state import StatePaths

if TYPE_CHECKING:
    from sidecar.harnesses.acp import AcpConnection
    from sidecar.providers.base import SandboxProcess

ROOT = "/opt/harness/"  # where the harnesses are in every sandbox
SCRIPTED_MODEL = "scripted-1"


@dataclass(frozen=True)
class Choice:
    """What a turn asks of the harness. None leaves it to the harness."""

    model: str | None = None
    reasoning: str | None = None
    permissions: Permissions = "auto"


def program(harness: Harness, process: SandboxProcess) -> str:
    """What of the harness a process was started as; empty for a process that is none of it."""
    *words, _ = process.argv  # the last one is the file that it was started from
    if words and words[0] in harness.titles:
        return words[0]
    for word in words[:2]:
        if word.startswith(ROOT) and any(part in word for part in harness.programs):
            return word
    return ""


def belongs(harness: Harness, process: SandboxProcess) -> bool:
    """Whether it is the harness, its adapter, or a tool of its own tree."""
    exe = process.argv[-1]
    own = exe.startswith(ROOT) and any(part in exe for part in harness.programs)
    return own or bool(program(harness, process))


class Harness(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def family(self) -> str:
        """Whose protocol it speaks to the gateway: anthropic or openai."""
        ...

    @property
    def efforts(self) -> tuple[str, ...]:
        """The words it knows for how hard to think."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether it can be made to ask before it writes or runs something."""
        ...

    @property
    def reload_after_cancel(self) -> bool:
        """Whether a cancelled tool lives on until the session is closed and loaded again."""
        ...

    @property
    def programs(self) -> tuple[str, ...]:
        """Parts of the paths below ROOT that its processes are started from."""
        ...

    @property
    def titles(self) -> tuple[str, ...]:
        """Names that its processes give themselves, which hide where they were started from."""
        ...

    @property
    def state(self) -> StatePaths:
        """Where its own record of the conversation is."""
        ...

    def mend(self, files: dict[str, bytes]) -> list[str]:
        """Make a state that was torn by a sudden end loadable, in place; returns what was done.

        Raises: StateBroken.
        """
        ...

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        """Files under HOME, by path; read when the adapter starts."""
        ...

    def env(self, gateway: str, token: str) -> Mapping[str, str]:
        """What it is started with. `token` is what it says to the gateway."""
        ...

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        """After every `session/new` and `session/load`: the mode, and what no file can say.

        `opened` is the answer to it. Raises: UnsupportedChoice, HarnessError.
        """
        ...
