"""Secrets that a process knows, masked where it writes: in its log and in events.

This is hygiene and no wall: a program that means to give a secret away can spell it in another way.
What keeps secrets out of a sandbox is that none is put there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

MASK = "[secret]"
# A shorter one is a word that anybody may say.
SHORTEST = 8


class Redactor:
    """Masks a set of secrets, which may grow."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self._encoded: tuple[bytes, ...] = ()
        self._beginnings: frozenset[str] = frozenset()
        self.know(*secrets)

    def know(self, *secrets: str) -> None:
        """Mask these too. One that holds another is looked for first."""
        known = {*self._secrets, *(each for each in secrets if len(each) >= SHORTEST)}
        self._secrets = tuple(sorted(known, key=len, reverse=True))
        self._encoded = tuple(json.dumps(each)[1:-1].encode("ascii") for each in self._secrets)
        self._beginnings = frozenset(each[0] for each in self._secrets)

    def forget(self, *secrets: str) -> None:
        """These open nothing any more."""
        left, self._secrets = set(self._secrets) - set(secrets), ()
        self.know(*left)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def line(self, line: bytes) -> bytes:
        """The same for ASCII JSON, as `contracts.events.dumps` makes it."""
        for secret in self._encoded:
            if secret in line:
                line = line.replace(secret, MASK.encode())
        return line

    def begun(self, text: str) -> int:
        """Where at the end of a text a secret may have begun that the next piece goes on with; the
        text's length when none has."""
        if not self._secrets:
            return len(text)
        for at in range(max(0, len(text) - len(self._secrets[0]) + 1), len(text)):
            if text[at] in self._beginnings:
                tail = text[at:]
                if any(len(s) > len(tail) and s.startswith(tail) for s in self._secrets):
                    return at
        return len(text)

    def divided(self, text: str, at: int) -> bool:
        """Whether a cut there would go through a secret."""
        for secret in self._secrets:
            found = text.find(secret, max(0, at - len(secret) + 1), at + len(secret) - 1)
            if 0 <= found < at:
                return True
        return False


class RedactingFormatter(logging.Formatter):
    """Another formatter's lines, tracebacks and all, without the secrets."""

    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self._inner = inner
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(self._inner.format(record))


def secrets_of(settings: BaseModel) -> list[str]:
    """Every secret value of a service's settings; of an address, the password in it."""
    found = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            plain = value.get_secret_value()
            found.append(_password(plain) if "://" in plain else plain)
    return found


def mask_logs(redactor: Redactor) -> None:
    """Let no handler of the root logger write a secret; called when logging is set up."""
    for handler in logging.getLogger().handlers:
        inner = handler.formatter or logging.Formatter()
        handler.setFormatter(RedactingFormatter(inner, redactor))


def _password(address: str) -> str:
    try:
        return unquote(urlsplit(address).password or "")
    except ValueError:
        return address
