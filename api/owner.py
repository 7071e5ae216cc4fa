"""The stack's own token: given once, or kept in a file that may be replaced at any time."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from pydantic import SecretStr

from api.settings import MIN_TOKEN_CHARS, Settings
from contracts.redaction import Redactor

log = logging.getLogger(__name__)

NAME = "owner"


class OwnerToken:
    """Read anew whenever the file is another one, so that a rotation counts from the next request
    on, in every api process and without a word to any of them."""

    def __init__(
        self, fixed: SecretStr | None, file: Path | None, redactor: Redactor | None = None
    ) -> None:
        """`redactor` learns every token that is read."""
        self._file = file
        self._redactor = redactor or Redactor()
        self._seen: tuple[int, int, int] | None = None
        self._token = fixed.get_secret_value().encode() if fixed is not None and not file else b""

    @classmethod
    def of(cls, settings: Settings, redactor: Redactor | None = None) -> OwnerToken:
        return cls(settings.api_token, settings.api_token_file, redactor)

    def current(self) -> bytes:
        """The token that counts now; empty while the file has none, and then nothing is right."""
        if self._file is None:
            return self._token
        try:
            # a local file of a few bytes: less than a thread would cost
            found = self._file.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._token = self._file.read_bytes().strip()
                self._seen = seen
                self._redactor.know(self._token.decode("utf-8", "replace"))
        except OSError as error:
            if self._token:
                log.warning("the token's file cannot be read: %s", error.strerror)
            self._token, self._seen = b"", None
        return self._token if len(self._token) >= MIN_TOKEN_CHARS else b""

    def is_token(self, given: bytes) -> bool:
        current = self.current()
        return hmac.compare_digest(given, current) and bool(current)
