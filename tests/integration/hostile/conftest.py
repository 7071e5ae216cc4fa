from __future__ import annotations

from tests.support import examples as examples
