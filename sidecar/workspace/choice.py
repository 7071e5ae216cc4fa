"""Which engine serves, and why: said at start, in `doctor`, in the session and in every receipt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EngineName = Literal["auto", "geesefs", "weed", "checkpoint"]


@dataclass(frozen=True)
class EngineChoice:
    name: str
    why: str


def choose(setting: EngineName, geesefs: Path | None) -> EngineChoice:
    """Raises: ValueError, when the engine that was asked for cannot serve here."""
    if setting in ("weed", "checkpoint"):
        return EngineChoice(setting, f"HOLDFAST_WORKSPACE={setting}")
    if setting == "geesefs":
        if geesefs is None:
            raise ValueError(
                "HOLDFAST_WORKSPACE=geesefs, but there is no geesefs on PATH or in the cache: "
                "install it, set HOLDFAST_GEESEFS, or use auto"
            )
        return EngineChoice("geesefs", "HOLDFAST_WORKSPACE=geesefs")
    if geesefs is not None:
        return EngineChoice("geesefs", f"its binary is at {geesefs}")
    return EngineChoice("weed", "no geesefs binary was found")
