"""Ports that are chosen for a program which binds them later."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from stack.embedded.ports import GRPC_OFFSET, StorePorts, claim_port, store_ports
from tests.support.ports import closed_port


def test_no_port_is_claimed_twice() -> None:
    ports = [claim_port(GRPC_OFFSET) for _ in range(50)]
    assert len({*ports, *(port + GRPC_OFFSET for port in ports)}) == 100


def test_a_port_that_another_process_has_claimed_is_not_taken(tmp_path: Path) -> None:
    theirs = 32_000 - GRPC_OFFSET  # one above those that are chosen
    master, volume, filer = (claim_port(GRPC_OFFSET) for _ in range(3))
    kept = StorePorts(master, volume, filer, theirs)
    (tmp_path / "ports.json").write_text(json.dumps(asdict(kept)))
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(f"\0holdfast-port-{theirs + GRPC_OFFSET}")
        assert theirs not in asdict(store_ports(tmp_path / "ports.json")).values()


def test_a_closed_port_stays_closed() -> None:
    port = closed_port()
    with socket.socket() as client, socket.socket() as server:
        assert client.connect_ex(("127.0.0.1", port)) != 0
        with pytest.raises(OSError, match="in use"):
            server.bind(("127.0.0.1", port))
