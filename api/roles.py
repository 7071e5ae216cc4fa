"""Which role each route needs, and what it is called on record.

`read` looks, `run` also works with sessions, `admin` also decides who may. A route that is not in
this table is served to no one but an admin, and a test fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from contracts.bodies import Role

RANK: Mapping[Role, int] = {"read": 0, "run": 1, "admin": 2}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# What needs no token at all.
OPEN = ("GET", "/healthz")


@dataclass(frozen=True)
class Rule:
    """`action` is empty for what changes nothing and is not put on record."""

    role: Role
    action: str = ""


READ = Rule("read")
SESSION, TURN = "/sessions/{sid}", "/sessions/{sid}/turns/{tid}"

RULES: Mapping[tuple[str, str], Rule] = {
    ("GET", "/"): READ,
    ("GET", "/static/{path:path}"): READ,
    ("GET", "/openapi.json"): READ,
    ("GET", "/me"): READ,
    ("GET", "/readyz"): READ,
    ("GET", "/metrics"): READ,
    ("GET", "/capabilities"): READ,
    ("GET", "/sandboxes"): READ,
    ("GET", "/leaks"): READ,
    ("GET", "/sessions"): READ,
    ("POST", "/sessions"): Rule("run", "session.create"),
    ("GET", SESSION): READ,
    ("PATCH", SESSION): Rule("run", "session.change"),
    ("DELETE", SESSION): Rule("run", "session.delete"),
    ("GET", f"{SESSION}/contents"): READ,
    ("POST", f"{SESSION}/kill"): Rule("run", "sandbox.kill"),
    ("POST", f"{SESSION}/destroy"): Rule("run", "sandbox.destroy"),
    ("GET", f"{SESSION}/events"): READ,
    ("GET", f"{SESSION}/permissions"): READ,
    ("POST", f"{SESSION}/permissions/{{pid}}"): Rule("run", "permission.answer"),
    ("GET", f"{SESSION}/files"): READ,
    ("GET", f"{SESSION}/files/{{path:anypath}}"): READ,
    ("PUT", f"{SESSION}/files/{{path:anypath}}"): Rule("run", "file.put"),
    ("DELETE", f"{SESSION}/files/{{path:anypath}}"): Rule("run", "file.delete"),
    ("POST", f"{SESSION}/folders"): Rule("run", "folder.create"),
    ("POST", f"{SESSION}/move"): Rule("run", "file.move"),
    ("GET", f"{SESSION}/zip"): READ,
    ("GET", f"{SESSION}/live"): READ,
    ("GET", f"{SESSION}/live/file"): READ,
    ("GET", f"{SESSION}/turns"): READ,
    ("POST", f"{SESSION}/turns"): Rule("run", "turn.start"),
    ("GET", TURN): READ,
    ("GET", f"{TURN}/manifest"): READ,
    ("GET", f"{TURN}/changes"): READ,
    ("POST", f"{TURN}/cancel"): Rule("run", "turn.cancel"),
    ("POST", "/invoke"): Rule("run", "invoke"),
    ("GET", "/matrix/runs"): READ,
    ("POST", "/matrix/runs"): Rule("run", "matrix.start"),
    ("GET", "/matrix/runs/{rid}"): READ,
    ("POST", "/matrix/runs/{rid}/cancel"): Rule("run", "matrix.cancel"),
    ("GET", "/tokens"): Rule("admin"),
    ("POST", "/tokens"): Rule("admin", "token.create"),
    ("DELETE", "/tokens/{name}"): Rule("admin", "token.delete"),
    ("GET", "/audit"): Rule("admin"),
}


@dataclass(frozen=True)
class Matched:
    rule: Rule
    # the parts of the path that the template names
    params: Mapping[str, str]


def matched(method: str, path: str) -> Matched | None:
    """The rule for a request; None where no route is declared."""
    for (of, template), rule in RULES.items():
        if of == ("GET" if method == "HEAD" else method):
            found = _pattern(template).fullmatch(path)
            if found is not None:
                return Matched(rule, found.groupdict())
    return None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """As the router reads a template: `{name}` is one segment, `{name:…path}` all that follows."""
    pieces = re.split(r"\{(\w+)(:\w+)?\}", template)
    pattern = re.escape(pieces[0])
    for name, kind, literal in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        anything = "(?s:.*)" if kind else "[^/]+"
        pattern += f"(?P<{name}>{anything}){re.escape(literal)}"
    return re.compile(pattern)
