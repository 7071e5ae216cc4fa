"""The browser that the page is tried in."""

from __future__ import annotations

import shutil

# As scripts/install-chromium looks for it, the cheapest first.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")


def find_chromium() -> str | None:
    """Its path, or None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)
