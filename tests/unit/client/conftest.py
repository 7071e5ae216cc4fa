from __future__ import annotations

from tests.support.client.commands import invoke as invoke
from tests.support.client.fixtures import api as api
from tests.support.client.fixtures import hf as hf
from tests.support.client.fixtures import server as server
