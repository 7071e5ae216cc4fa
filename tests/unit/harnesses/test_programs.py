"""Which processes of a sandbox are a harness, as they were seen to run."""

from __future__ import annotations

import pytest

from sidecar.harnesses.base import belongs, program
from sidecar.harnesses.registry import HARNESSES
from sidecar.providers.base import SandboxProcess

NODE = "/opt/node/bin/node"
SDK = "/opt/harness/node_modules/@anthropic-ai/claude-agent-sdk-linux-x64/claude"
CODEX = "/opt/harness/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin"
SEEN: dict[str, list[tuple[str, ...]]] = {
    "claude": [
        ("node", "/opt/harness/bin/claude-agent-acp", NODE),
        (SDK, "--output-format", "stream-json", SDK),
    ],
    "codex": [
        ("node", "/opt/harness/bin/codex-acp", NODE),
        (NODE, "/opt/harness/node_modules/@openai/codex/bin/codex.js", "app-server", NODE),
        (f"{CODEX}/codex", "app-server", f"{CODEX}/codex"),
    ],
    "opencode": [("/opt/harness/bin/opencode", "acp", "/opt/harness/bin/opencode")],
    "pi": [("node", "/opt/harness/bin/pi-acp", NODE), ("pi", NODE)],
}
OTHERS: list[tuple[str, ...]] = [
    ("/opt/harness/bin/sandbox-agent", "server", "/opt/harness/bin/sandbox-agent"),
    ("/bin/bash", "-c", "cat /opt/harness/bin/codex-acp", "/usr/bin/bash"),
    ("node", "server.js", NODE),
    ("python3", "pi", "/usr/bin/python3.11"),
]


def process(*argv: str) -> SandboxProcess:
    return SandboxProcess("token", 7, argv)


@pytest.mark.parametrize("name", SEEN)
def test_each_process_of_a_harness_is_its_own_and_nobody_else_s(name: str) -> None:
    for argv in SEEN[name]:
        found = [each for each in SEEN if belongs(HARNESSES[each], process(*argv))]
        assert found == [name], argv
        assert program(HARNESSES[name], process(*argv))


@pytest.mark.parametrize("argv", OTHERS)
def test_what_only_looks_like_a_harness_is_none(argv: tuple[str, ...]) -> None:
    assert not any(belongs(harness, process(*argv)) for harness in HARNESSES.values())


def test_claude_s_search_tool_belongs_to_it_but_is_not_what_it_lives_by() -> None:
    search = process("rg", "--no-config", SDK)
    assert belongs(HARNESSES["claude"], search)
    assert not program(HARNESSES["claude"], search)
