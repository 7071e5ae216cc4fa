"""The modules without a page, in Node."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from stack.install.binaries import find_node
from stack.settings import Settings
from tests.support.paths import ROOT
from tests.ui.hooks import Hook

PURE = Path(__file__).parent / "pure"
STATIC = ROOT / "api" / "static"


def test_the_modules_without_a_page_pass_their_own_tests() -> None:
    files = sorted(str(path) for path in PURE.glob("*.test.js"))
    done = subprocess.run(
        [str(find_node(Settings()).path), "--test", *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(?:#|\u2139) pass (\d+)", done.stdout)
    assert counted is not None
    assert int(counted[1]) > 30


def test_nothing_in_the_page_makes_markup_of_text() -> None:
    forbidden = r"InnerHTML|innerHTML|outerHTML|insertAdjacent|document\.write|\beval\("
    for path in STATIC.rglob("*.js"):
        if path.parent.name != "vendor":
            assert re.search(forbidden, path.read_text()) is None, path.name


def test_every_hook_of_the_tests_is_set_by_the_page_and_no_other() -> None:
    pattern = r"""\b(?:data-test|test)"?(?:=|: )"([a-z-]+)\""""
    texts = [path.read_text() for path in STATIC.rglob("*.js") if path.parent.name != "vendor"]
    found = {name for text in texts for name in re.findall(pattern, text)}
    assert found == set(Hook)


def test_our_modules_are_short() -> None:
    for path in [*STATIC.glob("*.js"), *STATIC.glob("[!v]*/*.js"), *STATIC.rglob("*.css")]:
        assert len(path.read_text().splitlines()) < 300, path.name


def test_every_module_of_the_first_screen_is_preloaded() -> None:
    page = (STATIC / "index.html").read_text()
    preloaded = set(re.findall(r'modulepreload" href="/static/([^"]+)"', page))
    seen, waiting = set(), ["app.js"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        text = (STATIC / name).read_text()
        for found in re.findall(r'^(?:import|\} from|export).*?from "(\.[^"]+)"', text, re.M):
            waiting.append(
                str((STATIC / name).parent.joinpath(found).resolve().relative_to(STATIC))
            )
    assert preloaded == seen - {"app.js"}
