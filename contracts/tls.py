"""How a client checks whom it speaks to."""

from __future__ import annotations

import ssl


def verification_for(url: str) -> ssl.SSLContext | bool:
    """The `verify` of an httpx client of this address, which may be `unix:` and a path.

    Loading the certificate authorities takes 50 ms of CPU. A client that speaks plain HTTP gets a
    context that trusts none of them: it costs nothing, and TLS would fail instead of passing
    unchecked.
    """
    if url.lower().startswith("https:"):
        return True
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
