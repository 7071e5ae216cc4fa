"""How a stored file's version is named to browsers, which keep what has not changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.store import name_version

AT = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)


def test_a_file_that_a_mount_wrote_to_has_another_version_for_browsers() -> None:
    first = name_version('"abc"', AT)
    assert first == name_version('"abc"', AT)
    assert first != name_version('"abc"', AT + timedelta(seconds=1))
    assert first != name_version('"abd"', AT)
    assert first.startswith('"abc-')
    assert first.endswith('"')


def test_an_object_without_an_etag_has_no_version() -> None:
    assert name_version("", AT) == ""
