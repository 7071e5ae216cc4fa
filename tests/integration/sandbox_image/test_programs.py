"""The image of container sandboxes, run as sandboxes are: no network, no capability, read-only."""

from __future__ import annotations

import json
import subprocess
from typing import Any

CONFINED = (
    *("--network", "none", "--read-only", "--tmpfs", "/tmp:exec", "--volume", "/home/agent"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
)


def docker(*arguments: str, within: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("docker", *arguments), capture_output=True, text=True, timeout=within, check=False
    )


def test_every_program_runs_and_every_adapter_answers(sandbox_image: str) -> None:
    ran = docker(
        *("run", "--rm", *CONFINED, "--entrypoint", "/opt/holdfast/smoke", sandbox_image),
        within=170,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answered = [line for line in ran.stdout.splitlines() if "initialize: ACP" in line]
    assert len(answered) == 4


def test_the_image_is_an_ordinary_users_and_starts_no_harness(sandbox_image: str) -> None:
    shown: dict[str, Any] = json.loads(docker("image", "inspect", sandbox_image).stdout)[0]
    assert shown["Config"]["User"] == "1000:1000"
    assert shown["Config"]["Entrypoint"] == ["python3", "-I", "-S", "/opt/holdfast/boxd"]
    assert not shown["Config"]["Cmd"]
    assert "holdfast.geesefs" in shown["Config"]["Labels"]
