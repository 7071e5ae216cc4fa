"""Secrets in what a service prints."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.secrets import SECRET, is_clean

STARTS: dict[str, dict[str, str]] = {
    "api": {"HOLDFAST_API_TOKEN": SECRET, "HOLDFAST_S3_SECRET_KEY": SECRET},
    "sidecar": {"HOLDFAST_SIDECAR_SECRET": SECRET, "HOLDFAST_S3_SECRET_KEY": SECRET},
    "sidecar.gateway": {"ANTHROPIC_API_KEY": SECRET, "HOLDFAST_GATEWAY_SECRET": SECRET},
}


@pytest.mark.parametrize("module", STARTS)
def test_a_service_that_cannot_start_says_why_without_its_secrets(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env={"PATH": os.defpath, "HOLDFAST_API_PORT": "much", **STARTS[module]},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "required" in said.lower(), said
    assert is_clean(said)
