"""Secrets that must be shown nowhere."""

from __future__ import annotations

SECRET = "hf-0123456789abcdefABCDEF"


OTHER = "0123456789abcdef-another"


def is_clean(*texts: str) -> bool:
    return not any(secret in text for secret in (SECRET, OTHER) for text in texts)
