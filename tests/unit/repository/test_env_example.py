"""Every setting stands in .env.example with a comment, and nothing stands there that is none."""

from __future__ import annotations

import importlib
import re

import pytest
from pydantic_settings import BaseSettings

from tests.support.paths import ROOT

EXAMPLE = (ROOT / ".env.example").read_text()
SETTINGS = (
    "api.settings",
    "client.settings",
    "sidecar.boxhost.__main__",
    "sidecar.settings",
    "sidecar.engine_proxy.settings",
    "sidecar.gateway.settings",
    "stack.settings",
)
OF_THE_SYSTEM = {"CI", "HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"}
OF_THE_TESTS = {"HOLDFAST_REQUIRE"}
COMPOSE = (ROOT / "docker-compose.yml").read_text()
OF_COMPOSE = set(re.findall(r"\$\{([A-Z][A-Z0-9_]+)", COMPOSE))


def names(module: str) -> set[str]:
    found = set()
    for settings in vars(importlib.import_module(module)).values():
        if not isinstance(settings, type) or not issubclass(settings, BaseSettings):
            continue
        prefix = settings.model_config.get("env_prefix", "")
        for name, field in settings.model_fields.items():
            alias = field.validation_alias
            found.add(alias if isinstance(alias, str) else f"{prefix}{name}".upper())
    return found - OF_THE_SYSTEM - {""}


def listed() -> dict[str, str]:
    """Each name in the example, with the comment above its block."""
    found, comment = {}, ""
    for line in EXAMPLE.splitlines():
        match = re.fullmatch(r"#? ?([A-Z][A-Z0-9_]+)=.*", line)
        if match:
            found[match[1]] = comment
        elif line.startswith("#"):
            comment = line
        else:
            comment = ""
    return found


@pytest.mark.parametrize("module", SETTINGS)
def test_every_setting_is_documented(module: str) -> None:
    undocumented = sorted(name for name in names(module) if not listed().get(name))
    assert undocumented == []


def test_every_documented_name_is_a_setting() -> None:
    known = set().union(*(names(module) for module in SETTINGS))
    assert sorted(set(listed()) - known - OF_THE_TESTS - OF_COMPOSE) == []


def test_every_variable_of_compose_is_documented() -> None:
    assert sorted(OF_COMPOSE - set(listed())) == []
