from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

NewDatabase = Callable[[], Coroutine[Any, Any, str]]
