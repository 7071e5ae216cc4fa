"""Ports that a container finds on its own loopback, and the words by which they are asked for."""

from __future__ import annotations

import pytest

from emulators.__main__ import parse
from emulators.options import Way


def test_a_way_leads_to_the_same_port_of_loopback_or_where_it_says() -> None:
    assert Way.read("8790") == Way(8790, "127.0.0.1", 8790)
    assert Way.read("8790=gateway:80") == Way(8790, "gateway", 80)


@pytest.mark.parametrize("text", ["", "0", "65536", "80=", "80=gateway", "80=gateway:0", "a=b:1"])
def test_what_is_no_way_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        Way.read(text)


@pytest.mark.parametrize("half", [("--lend", "7001"), ("--lend-to", "a=b")])
def test_ports_are_lent_to_somebody(half: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse(["e2b", *half])
