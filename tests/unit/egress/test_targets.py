"""What a client asks a proxy for, read strictly."""

from __future__ import annotations

import pytest

from sidecar.gateway.egress.targets import Refused, absolute_target, tunnel_target


@pytest.mark.parametrize(
    ("asked", "host", "port"),
    [
        ("pypi.org:443", "pypi.org", 443),
        ("PyPI.org:443", "pypi.org", 443),
        ("1.2.3.4:80", "1.2.3.4", 80),
        ("[2606:4700:0::1]:443", "2606:4700::1", 443),
    ],
)
def test_a_tunnel_leads_to_a_host_and_a_port(asked: str, host: str, port: int) -> None:
    target = tunnel_target(asked)
    assert (target.host, target.port) == (host, port)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "pypi.org",
        "pypi.org:",
        "pypi.org:0",
        "pypi.org:0443",
        "pypi.org:+443",
        "pypi.org:65536",
        "pypi.org:99999999999",
        "pypi.org:443:443",
        "pypi.org:443/",
        "pypi.org.:443",
        "user@pypi.org:443",
        "127.0.0.1@pypi.org:443",
        "pypi.org:443@127.0.0.1:80",
        "http://pypi.org:443",
        "/pypi.org:443",
        "localhost:443",
        "127.1:443",
        "2130706433:443",
        "0x7f000001:443",
        "0x7f.0.0.1:443",
        "0177.0.0.1:443",
        "127.0.0.01:443",
        "256.0.0.1:443",
        "1.2.3.4.5:443",
        "[::1:443",
        "[::1]443",
        "[::1]",
        "::1:443",
        "[fe80::1%25eth0:443",
        "[127.0.0.1]:443",
        "[v1.x]:443",
        "pypi.org%00.evil.com:443",
        "\ufffdpypi.org:443",
    ],
)
def test_what_has_two_readings_is_no_target(asked: str) -> None:
    with pytest.raises(Refused) as refused:
        tunnel_target(asked)
    assert refused.value.status == 400
    assert refused.value.reason


@pytest.mark.parametrize(
    ("asked", "authority", "path"),
    [
        ("http://a.example/x?y=1", "a.example", "/x?y=1"),
        ("HTTP://A.example", "a.example", "/"),
        ("http://a.example?y=1", "a.example", "/?y=1"),
        ("http://a.example:80/", "a.example", "/"),
        ("http://a.example:8080/a@b:c", "a.example:8080", "/a@b:c"),
        ("http://[2606:4700::1]:81/", "[2606:4700::1]:81", "/"),
    ],
)
def test_a_url_is_a_host_and_what_is_asked_of_it(asked: str, authority: str, path: str) -> None:
    target, rest = absolute_target(asked)
    assert (target.authority, rest) == (authority, path)


@pytest.mark.parametrize(
    "asked",
    [
        "https://a.example/",
        "ftp://a.example/",
        "//a.example/",
        "http:/a.example/",
        "http:///a.example",
        "http://",
        "http://user:pass@a.example/",
        "http://a.example@127.0.0.1/",
        "http://127.0.0.1\\@a.example/",
        "http://a.example\\@127.0.0.1/",
        "http://a.example#@127.0.0.1/",
        "http://a.example/#x",
        "http://a.example:/",
        "http://localhost/",
        "http://0x7f.1/",
    ],
)
def test_a_url_that_could_mean_another_host_is_refused(asked: str) -> None:
    with pytest.raises(Refused) as refused:
        absolute_target(asked)
    assert refused.value.status == 400
