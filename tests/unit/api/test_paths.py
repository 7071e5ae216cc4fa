"""Which paths may name something in a workspace."""

from __future__ import annotations

import pytest

from api.paths import MAX_BYTES, workspace_path
from contracts.errors import InvalidPath


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b.txt",
        ".git/config",
        "..a/b..",
        "...",
        "a b/ü/🙂",
        "%2e%2e",
        "a" * MAX_BYTES,
        "\ufffd",
    ],
)
def test_a_plain_relative_path_is_taken_as_it_is(path: str) -> None:
    assert workspace_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "../a",
        "a/..",
        "a/../b",
        ".",
        "./a",
        "a/./b",
        "/a",
        "//a",
        "a//b",
        "a/",
        "a\0b",
        "a\\b",
        "..\\a",
        "\ud800",
        "a" * (MAX_BYTES + 1),
        "ü" * (MAX_BYTES // 2 + 1),
    ],
)
def test_any_other_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        workspace_path(path)


def test_the_empty_path_is_the_workspace_only_where_that_is_asked_for() -> None:
    assert workspace_path("", root=True) == ""
    with pytest.raises(InvalidPath):
        workspace_path("..", root=True)
