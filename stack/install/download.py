"""Download one file whose content is known beforehand."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import IO

import httpx

from stack.errors import DownloadFailed
from stack.install.progress import Progress

CONNECT_SECONDS = 4.0
READ_SECONDS = 20.0
TOTAL_SECONDS = 600.0
# Far above any program we fetch: a wrong address must not fill the disk.
MAX_BYTES = 512 * 1024 * 1024


def download(url: str, target: Path, *, sha256: str, progress: Progress) -> None:
    """Put the file at `url` at `target`, executable, only if its content is `sha256`.

    Raises:
        DownloadFailed: unreachable, refused, cut short, too slow, too big, or another content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            found = _stream(url, file, progress)
        if found != sha256:
            raise DownloadFailed(
                f"{url} has sha256 {found}, not the pinned {sha256}",
                hint="the file was changed on the way or at its source: it was not used",
            )
        partial.chmod(0o755)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
        progress.finish()


def _stream(url: str, file: IO[bytes], progress: Progress) -> str:
    digest = hashlib.sha256()
    deadline = time.monotonic() + TOTAL_SECONDS
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=timeout) as response:
            response.raise_for_status()
            total = int(response.headers.get("content-length", 0)) or None
            for chunk in response.iter_bytes(1 << 16):
                file.write(chunk)
                digest.update(chunk)
                progress.step(f"downloading {url.rsplit('/', 1)[-1]}", file.tell(), total)
                if file.tell() > MAX_BYTES or time.monotonic() > deadline:
                    raise DownloadFailed(f"{url} is too big or too slow")
    except httpx.HTTPStatusError as error:
        raise DownloadFailed(f"{url} answered {error.response.status_code}") from None
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise DownloadFailed(f"{url}: {reason}") from None
    except httpx.InvalidURL as error:
        raise DownloadFailed(f"{url} is not a URL: {error}") from None
    return digest.hexdigest()
