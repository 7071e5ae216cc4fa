"""Known vulnerabilities of the packages in uv.lock, by pip-audit: `python -m scripts.audit`.

It asks PyPI's vulnerability service. Where that cannot be reached, or a mirror says that it knows
no package, it says that nothing was looked up; a vulnerability that was found is a failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

WITHIN_SECONDS = 300


def ask(uv: str, place: Path) -> tuple[dict[str, Any] | None, str]:
    """pip-audit's answer, or None and what it said instead."""
    listed = place / "requirements.txt"
    export = [uv, "export", "--locked", "--quiet", "--no-emit-workspace", "--all-groups"]
    subprocess.run([*export, "-o", str(listed)], cwd=ROOT, check=True, capture_output=True)
    audit = [uv, "run", "--quiet", "--isolated", "--locked", "--only-group", "audit", "pip-audit"]
    audit += ["--requirement", str(listed), "--disable-pip", "--require-hashes"]
    audit += ["--progress-spinner", "off", "--format", "json", "--timeout", "15"]
    try:
        done = subprocess.run(
            audit,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WITHIN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {WITHIN_SECONDS} s"
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, done.stderr.strip()
    return answer, done.stderr.strip()


def told(answer: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code, and the lines to print."""
    packages = answer["dependencies"]
    asked = [each for each in packages if "skip_reason" not in each]
    found = [each for each in asked if each["vulns"]]
    lines = [
        f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in"
        f" {', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for each in found
        for vulnerability in each["vulns"]
    ]
    if not asked:
        reason = packages[0]["skip_reason"] if packages else "the lock is empty"
        return 0, [f"pip-audit: not run: no package could be looked up ({reason})"]
    lines.append(f"pip-audit: {len(asked)} of {len(packages)} packages looked up")
    if found:
        return 1, [*lines, f"{len(found)} have known vulnerabilities"]
    return 0, lines


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        answer, said = ask(sys.argv[1] if len(sys.argv) > 1 else "uv", Path(place))
    if answer is None:
        last = said.splitlines()[-1] if said else "it said nothing"
        if any(word in said for word in ("ConnectionError", "Connection", "timed out", "answer")):
            code, lines = 0, [f"pip-audit: not run: no network ({last})"]
        else:
            code, lines = 1, [said, "pip-audit failed"]
    else:
        code, lines = told(answer)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
