from __future__ import annotations

from tests.support.engine_proxy import engine as engine
from tests.support.engine_proxy import proxy as proxy
