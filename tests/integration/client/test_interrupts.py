"""What Ctrl-C and a closed pipe do to a command."""

from __future__ import annotations

import signal

from contracts import errors, events
from tests.support.client.commands import WAIT_SECONDS, start_command, wait_until
from tests.support.client.wire_server import FakeApi


def test_ctrl_c_cancels_the_turn_and_waits_for_its_end(api: FakeApi) -> None:
    api.script = [events.Message(role="assistant", text="working")]
    with start_command(api, "run", "go") as process:
        wait_until(lambda: bool(api.asked("/events")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert len(api.asked("/cancel")) == 1
    assert "turn cancelled: asked" in out
    assert "Traceback" not in err


def test_ctrl_c_twice_leaves_the_turn_running(api: FakeApi) -> None:
    api.script = [events.Message(role="assistant", text="working")]
    session = api.add_session()
    with start_command(api, "run", "go", "--session", "last") as process:
        wait_until(lambda: bool(api.asked("/events")))
        turn = next(iter(api.turns))
        api.answers[f"/sessions/{session.id}/turns/{turn}/cancel"] = errors.Unavailable("busy")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: bool(api.asked("/cancel")))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert f"holdfast show {session.id} --follow" in err
    assert "Traceback" not in err


def test_a_reader_that_has_enough_ends_the_command_quietly(api: FakeApi) -> None:
    session = api.add_session()
    api.append(session.id, *(events.Message(role="assistant", text="x" * 90_000) for _ in range(9)))
    with start_command(api, "show", "last", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(WAIT_SECONDS)
    assert err == ""
    assert process.returncode == 1


def test_ctrl_c_cancels_a_turn_that_waits(api: FakeApi) -> None:
    api.add_session()
    api.queue_next = True
    with start_command(api, "run", "go", "--session", "last", "--queue") as process:
        wait_until(lambda: api.looks_at_queued > 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert "turn cancelled before it started" in err
    assert "Traceback" not in err
