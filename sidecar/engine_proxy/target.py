"""The target of a request, read in one way only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from contracts.errors import EngineCallRefused
from sidecar.engine_proxy.strict_json import shown

# Before it, a create request without a word about it got the host's cgroup namespace.
OLDEST_VERSION = (1, 41)
_MOST_PARAMETERS = 8
_VERSION = re.compile(r"/v([0-9]{1,3})\.([0-9]{1,3})(?=/)")


@dataclass(frozen=True)
class Target:
    version: str  # "/v1.41", or "" when the request named none
    path: str  # as sent, neither decoded nor cleaned: only an exact one is known
    query: Mapping[str, str]


def parse_target(raw: str) -> Target:
    """Raises: EngineCallRefused for an old version, or a query that is malformed or ambiguous."""
    whole, question_mark, query = raw.partition("?")
    match = _VERSION.match(whole)
    if match and (int(match[1]), int(match[2])) < OLDEST_VERSION:
        raise EngineCallRefused(f"version {match[0][2:]} of the engine's API is not allowed")
    version = f"/v{int(match[1])}.{int(match[2])}" if match else ""
    path = whole[match.end() :] if match else whole
    return Target(version, path, _parameters(query) if question_mark else {})


def _parameters(query: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise EngineCallRefused("the query is malformed") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise EngineCallRefused(f"the parameter {shown(name)} is given twice")
        found[name] = value
    return found
