"""No provider is left out."""

from __future__ import annotations

from sidecar.providers import registry
from tests.integration.conformance.ways import CLOUDS, WAYS, WIRES


def test_every_provider_of_the_registry_is_run() -> None:
    assert set(WAYS.values()) == set(registry.ROWS), "a new provider needs a way: ways.py"


def test_every_provider_with_a_vendors_sdk_has_faults_injected() -> None:
    vendors = {row.name for row in registry.ROWS.values() if row.module is not None}
    assert vendors == set(CLOUDS) == set(WIRES)
