"""Tokens that name a session to the model gateway, where the way a request comes by does not.

Made from a secret that sidecar and gateway share, so that neither has to keep them.
"""

from __future__ import annotations

import hashlib
import hmac


def session_token(secret: bytes, session_id: str) -> str:
    sign = hmac.new(secret, f"gateway {session_id}".encode(), hashlib.sha256).hexdigest()
    return f"{session_id}.{sign}"


def session_of(secret: bytes, token: str) -> str | None:
    """The session that the token was made for; None for one that was not made here."""
    session_id, _, _ = token.partition(".")
    made = session_token(secret, session_id)
    return session_id if hmac.compare_digest(made.encode(), token.encode()) else None
