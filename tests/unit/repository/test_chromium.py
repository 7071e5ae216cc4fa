"""The browser that is installed is one that the tests of the page find."""

from __future__ import annotations

import re

from tests.support.chromium import NAMES
from tests.support.paths import ROOT


def test_what_the_script_installs_is_what_the_tests_look_for() -> None:
    script = (ROOT / "scripts" / "install-chromium").read_text()
    looked_for = re.search(r"^for name in (.*); do$", script, re.MULTILINE)
    assert looked_for is not None
    assert tuple(looked_for[1].split()) == NAMES
    assert set(re.findall(r"--no-install-recommends (\S+)", script)) <= set(NAMES)
