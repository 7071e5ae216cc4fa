"""The async Python client: sessions, turns, events and files of a Holdfast stack."""

from client.follow import Patience
from client.holdfast import Holdfast
from client.receipts import Difference, StoredManifest
from client.settings import Store, Target, discover, from_env, open_store

__all__ = [
    "Difference",
    "Holdfast",
    "Patience",
    "Store",
    "StoredManifest",
    "Target",
    "discover",
    "from_env",
    "open_store",
]
