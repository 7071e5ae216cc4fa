"""Which addresses a proxy may connect to."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from sidecar.gateway.egress.addresses import PublicOnly, SystemResolver

ELSEWHERE = PublicOnly(is_own=lambda _: False)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::2",
        "::7f00:1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:0:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::10.0.0.1",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:808:808::1",
        "2606:4700::5efe:127.0.0.1",
        "2606:4700::200:5efe:10.0.0.1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1%eth0",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ],
)
def test_what_is_not_public_is_refused_with_a_reason(address: str) -> None:
    assert ELSEWHERE.refuses(ip_address(address), 443)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "151.101.0.223",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::6810:1",
        "2a04:4e42::223",
        "2003::1",
    ],
)
def test_a_public_address_of_another_machine_is_permitted(address: str) -> None:
    assert ELSEWHERE.refuses(ip_address(address), 443) == ""


def test_a_public_address_of_this_machine_is_refused() -> None:
    ours = ip_address("8.8.4.4")
    assert "this machine" in PublicOnly(is_own=lambda a: a == ours).refuses(ours, 443)


async def test_a_name_is_looked_up_as_it_is_and_in_no_search_domain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pypi.org` must not become `pypi.org.corp.example`, which the machine may know."""
    asked: list[str] = []

    def look(host: str, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [(2, 1, 6, "", ("93.184.215.14", 0))] * 2

    monkeypatch.setattr(socket, "getaddrinfo", look)
    with SystemResolver.open() as resolve:
        assert await resolve("pypi.org") == ["93.184.215.14"]
    assert asked == ["pypi.org."]
