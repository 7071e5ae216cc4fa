from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stack.errors import DownloadFailed
from stack.install.download import download
from stack.install.progress import Silent
from tests.support.services import free_port
from tests.support.stack.origin import CONTENT, SHA256, Origin


def test_the_right_content_becomes_an_executable(origin: Origin, tmp_path: Path) -> None:
    target = tmp_path / "new" / "program"
    download(f"{origin.url}/moved", target, sha256=SHA256, progress=Silent())
    assert target.read_bytes() == CONTENT
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert [path.name for path in target.parent.iterdir()] == ["program"]


@pytest.mark.parametrize(
    ("name", "sha256", "message"),
    [
        ("whole", "0" * 64, "not the pinned"),
        ("cut", SHA256, "cut: "),
        ("missing", SHA256, "answered 404"),
    ],
)
def test_anything_else_leaves_no_file_behind(
    origin: Origin, tmp_path: Path, name: str, sha256: str, message: str
) -> None:
    target = tmp_path / "program"
    with pytest.raises(DownloadFailed, match=message):
        download(f"{origin.url}/{name}", target, sha256=sha256, progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nobody_listens_is_a_clear_error(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/program"
    with pytest.raises(DownloadFailed, match=r"refused|failed"):
        download(url, tmp_path / "program", sha256=SHA256, progress=Silent())
