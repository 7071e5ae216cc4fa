"""Names of hosts in one spelling, and what an allow-list covers."""

from __future__ import annotations

import pytest

from contracts.egress import BadHost, host_name, pattern, permits


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("pypi.org", "pypi.org"),
        ("PyPI.ORG", "pypi.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a-b.c3.example", "a-b.c3.example"),
        ("3com.com", "3com.com"),
    ],
)
def test_a_name_has_one_spelling(given: str, name: str) -> None:
    assert host_name(given) == name


@pytest.mark.parametrize(
    "given",
    [
        "",
        ".",
        "localhost",
        "LOCALHOST",
        "api.localhost",
        "intranet",
        "pypi.org.",
        "pypi..org",
        ".pypi.org",
        "-a.example",
        "a-.example",
        "under_score.example",
        "a b.example",
        "a\t.example",
        "a\0.example",
        "a/b.example",
        "a@b.example",
        "a:80",
        "a%2eexample.org",
        "a\\b.example",
        f"{'a' * 64}.example",
        f"{'a.' * 127}example",
        # addresses, in every disguise that inet_aton() sees through
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "a.0x7f",
        "a.1",
        "a.0x",
        "\uff11\uff12\uff17.0.0.1",  # digits of another width
        "127\u30020\u30020\u30021",  # dots of another width
        "[::1]",
        "::1",
    ],
)
def test_what_is_no_public_name_is_refused(given: str) -> None:
    with pytest.raises(BadHost):
        host_name(given)


@pytest.mark.parametrize(
    ("entry", "host", "covered"),
    [
        ("pypi.org", "pypi.org", True),
        ("pypi.org", "evilpypi.org", False),
        ("pypi.org", "pypi.org.evil.com", False),
        ("pypi.org", "files.pypi.org", False),
        ("*.pypi.org", "files.pypi.org", True),
        ("*.pypi.org", "a.b.pypi.org", True),
        ("*.pypi.org", "pypi.org", False),
        ("*.pypi.org", "evilpypi.org", False),
        ("*.pypi.org", "evil.pypi.org.evil.com", False),
        (".pypi.org", "pypi.org", True),
        (".pypi.org", "files.pypi.org", True),
        (".pypi.org", "evilpypi.org", False),
        (".pypi.org", "pypi.org.evil.com", False),
        ("*.BÜCHER.example", "www.xn--bcher-kva.example", True),
        ("PyPI.org", "pypi.org", True),
    ],
)
def test_an_allow_list_covers_whole_labels(entry: str, host: str, covered: bool) -> None:
    assert permits([pattern(entry)], host) is covered


@pytest.mark.parametrize(
    "entry", ["*", "*.", "**.example.org", "*.org", "a.*.org", "*pypi.org", "10.0.0.1", "*.0.0.1"]
)
def test_an_entry_that_covers_too_much_or_nothing_is_refused(entry: str) -> None:
    with pytest.raises(BadHost):
        pattern(entry)


def test_an_empty_list_covers_nothing() -> None:
    assert not permits([], "pypi.org")
