"""Skips that CI knows of, each with the most cases that it may take. Any other fails CI."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A reason as a pattern -> the most cases. geesefs is in no package registry, so CI has none.
KNOWN: Mapping[str, int] = {
    r"no geesefs on PATH": 316,
    r"boxes have no fusermount3": 1,  # the same, in a sandbox
    # conformance: what a provider declares that it does not do
    r"\w+ declares .*": 30,
    r"no directory of ours is in its sandbox .*": 30,
}


def unknown_skips(skips: Mapping[str, int]) -> dict[str, int]:
    """The reasons that are not known, or that take more cases than they may."""
    left = dict(KNOWN)
    unknown = {}
    for reason, count in skips.items():
        pattern = next((each for each in left if re.fullmatch(each, reason)), None)
        if pattern is None:
            unknown[reason] = count
            continue
        left[pattern] -= count
        if left[pattern] < 0:
            unknown[reason] = -left[pattern]
    return unknown
