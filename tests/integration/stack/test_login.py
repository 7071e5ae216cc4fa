"""Who may use a running stack: tokens by the command line, and what can be reached from outside."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.stack.running import Place, pids_of, place, wait

pytestmark = [
    pytest.mark.stack,
    pytest.mark.usefixtures("harness_dir"),
    pytest.mark.xdist_group("running-stack"),
]


@pytest.fixture
def stack(running_stack: Place) -> Place:
    return running_stack


def told(stack: Place, *words: str) -> Any:
    """What a command says as JSON."""
    answer = stack.command(*words, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def client(stack: Place, token: str | None = None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{stack.port}"
    return httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30)


def kept(stack: Place) -> str:
    return (stack.data / "token").read_text().strip()


def parts(stack: Place) -> dict[str, tuple[int, int]]:
    state = stack.state
    assert state is not None
    return {part.name: (part.pid or 0, part.restarts) for part in state.parts}


def test_a_rotated_token_is_the_only_one_at_once_and_no_part_is_restarted(stack: Place) -> None:
    old, before = kept(stack), parts(stack)
    with client(stack) as browser, client(stack, old) as program:
        assert browser.get("/", params={"token": old}).status_code == 303
        assert browser.get("/me").json() == {"name": "owner", "role": "admin"}
        rotated = told(stack, "token", "rotate")
        fresh = kept(stack)
        assert rotated == {
            "token": fresh,
            "login_url": f"http://127.0.0.1:{stack.port}/?token={fresh}",
        }
        assert fresh != old
        assert len(fresh) >= 43
        for asks in (browser, program):
            assert asks.get("/me").status_code == 401
        assert browser.get(rotated["login_url"]).status_code == 303
        assert browser.get("/me").status_code == 200
    assert stat.S_IMODE((stack.data / "token").stat().st_mode) == 0o600
    assert parts(stack) == before
    assert told(stack, "ls") == {"sessions": [], "next_cursor": None}


def test_an_api_that_is_started_again_after_a_rotation_has_the_new_token(stack: Place) -> None:
    fresh = told(stack, "token", "rotate")["token"]
    pid, restarts = parts(stack)["api"]
    os.kill(pid, signal.SIGKILL)
    wait(lambda: parts(stack)["api"][1] == restarts + 1, 30)
    wait(lambda: _is_ready(stack, "api"), 60)
    with client(stack, fresh) as owner:
        assert owner.get("/me").json()["name"] == "owner"
    assert f"?token={fresh}" in stack.command("status").stdout


def _is_ready(stack: Place, name: str) -> bool:
    state = stack.state
    assert state is not None
    return any(part.name == name and part.state == "ready" for part in state.parts)


def test_a_token_that_is_set_or_is_not_here_is_not_rotated(stack: Place, tmp_path: Path) -> None:
    before = kept(stack)
    answer = stack.command("token", "rotate", env={"HOLDFAST_API_TOKEN": "0123456789abcdef"})
    assert answer.returncode == 1
    assert "HOLDFAST_API_TOKEN" in answer.stderr
    elsewhere = {"HOLDFAST_URL": "http://127.0.0.1:1", "HOLDFAST_TOKEN": "x"}
    answer = stack.command("token", "rotate", env=elsewhere)
    assert answer.returncode == 1
    assert "compose-token-rotate" in answer.stderr
    answer = stack.command("token", "rotate", env={"HOLDFAST_DATA_DIR": str(tmp_path / "none")})
    assert answer.returncode == 1
    assert "no embedded stack" in answer.stderr
    assert kept(stack) == before


def test_a_stack_that_does_not_run_is_rotated_too(stack_dir: Path) -> None:
    stopped = place(stack_dir)
    stopped.data.mkdir()
    (stopped.data / "token").write_text("the token of last time\n")
    (stopped.data / "api.json").write_text('{"url": "http://127.0.0.1:1"}')
    rotated = told(stopped, "token", "rotate")
    assert rotated == {"token": kept(stopped), "login_url": None}
    assert rotated["token"] != "the token of last time"
    assert stat.S_IMODE((stopped.data / "token").stat().st_mode) == 0o600


def test_a_named_token_works_as_its_role_until_it_is_removed(stack: Place) -> None:
    made = told(stack, "token", "new", "ci", "--role", "run")
    assert (made["name"], made["role"]) == ("ci", "run")
    assert made["login_url"].endswith(f"/?token={made['token']}")
    plain = stack.command("token", "new", "viewer", "--role", "read")
    viewer = plain.stdout.strip()
    assert viewer.startswith("hf_")
    assert "\n" not in viewer
    listed = {each["name"]: each["role"] for each in told(stack, "token", "ls")["tokens"]}
    assert listed == {"ci": "run", "viewer": "read"}
    as_ci = {"HOLDFAST_URL": f"http://127.0.0.1:{stack.port}", "HOLDFAST_TOKEN": made["token"]}
    session = stack.command("new", "--title", "by ci", env=as_ci)
    assert session.returncode == 0, session.stderr
    sid = session.stdout.strip()
    refused = stack.command("token", "ls", env=as_ci)
    assert refused.returncode == 1
    assert "`admin`" in refused.stderr
    refused = stack.command("rm", "--yes", sid, env={**as_ci, "HOLDFAST_TOKEN": viewer})
    assert refused.returncode == 1
    assert "`run`" in refused.stderr

    record = told(stack, "audit", "--session", sid)["entries"]
    assert [(each["name"], each["client"], each["action"], each["status"]) for each in record] == [
        ("ci", "cli", "session.create", 201),
        ("viewer", "cli", "session.delete", 403),
    ]
    shown = stack.command("audit").stdout
    assert "token.create" in shown
    assert made["token"] not in shown

    for name in ("ci", "viewer"):
        assert told(stack, "token", "rm", name)["name"] == name
    assert stack.command("ls", env=as_ci).returncode == 1
    gone = stack.command("token", "rm", "ci")
    assert gone.returncode == 1
    assert "There is no token 'ci'" in gone.stderr


def test_everything_that_listens_does_so_on_loopback(stack: Place) -> None:
    with socket.create_server(("0.0.0.0", 0)) as open_to_all:  # it would be seen
        assert ("0.0.0.0", open_to_all.getsockname()[1]) in listening(os.getpid())
    found = {(address, port) for pid in pids_of(stack) for address, port in listening(pid)}
    state = stack.state
    assert state is not None
    assert {*state.ports.values()} <= {port for _, port in found}
    foreign = {each for each in found if not ipaddress.ip_address(each[0]).is_loopback}
    assert foreign == set()


def listening(pid: int) -> set[tuple[str, int]]:
    """The TCP sockets that a process listens on, as its own network shows them."""
    links = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                links.add(str(link.readlink()))
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it has ended meanwhile
        return set()
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {_address(row[1]) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


def _address(shown: str) -> tuple[str, int]:
    """The kernel shows an address as words of four bytes, each in the machine's order."""
    host, port = shown.split(":")
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(port, 16)
