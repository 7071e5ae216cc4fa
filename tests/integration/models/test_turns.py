"""Leases, the queue, holds and permissions on PostgreSQL, held against a model: two api processes
do what they may do, late or at once, while the database's clock goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from uuid_utils.compat import uuid7

from api.carrier import Carrier
from api.db import holds, leases, sessions, turns
from api.db.notify import Listener
from api.db.pool import Database, open_database
from api.db.turns import RunningTurn
from api.grants import begin_next, seize, take_over
from api.lines import Numbered
from api.permissions import TIMEOUT, Delivery, Permissions
from api.pump import Limits
from api.quota import Quotas
from api.record import Carried, record
from api.sidecar import Sidecar
from api.store import Stores
from api.turns import Turns
from contracts.bodies import Capabilities, Choices, PermissionAnswer, PermissionOption
from contracts.errors import AlreadyAnswered, NoTurnRunning, StaleEpoch, TurnRunning
from contracts.events import (
    Event,
    Message,
    PermissionAnswered,
    PermissionAsked,
    TurnCancelled,
    TurnCompleted,
    to_dict,
)
from tests.support.api import rows
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import CAPABILITIES
from tests.support.models import Machine, action, choose_settings, run_machine

EXAMPLES, STEPS, SEED = 30, 50, 1
LEASE = 10.0
HOLD = holds.LASTS.total_seconds()
ANSWER = 100.0
MARGIN = 3.0  # for a call, before something runs out
OPTIONS = [
    PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
    PermissionOption(option_id="always", name="Always", kind="allow_always"),
    PermissionOption(option_id="no", name="Reject", kind="reject_once"),
]

either = st.sampled_from((0, 1))
mostly_first = st.sampled_from((0, 0, 0, 1))
any_number = st.integers(0, 7)


@dataclass(frozen=True)
class Deadline:
    """A moment of the database's clock that is known as well as how long a call took."""

    earliest: float
    latest: float


@dataclass(frozen=True)
class During:
    """When a call was made, by the model's clock."""

    began: float
    ended: float

    def after(self, lasts: float) -> Deadline:
        return Deadline(self.began + lasts, self.ended + lasts)

    def is_over(self, deadline: Deadline) -> bool | None:
        """Whether it had passed when the call was made; None when that cannot be told."""
        if self.began >= deadline.latest:
            return True
        return False if self.ended < deadline.earliest else None


@dataclass
class Question:
    turn_id: UUID
    deadline: Deadline
    state: str = "pending"
    option_id: str | None = None
    by: str | None = None
    confirmed: bool = False

    @property
    def row(self) -> tuple[str, str | None, str | None, bool]:
        return self.state, self.option_id, self.by, self.confirmed


@dataclass
class Run:
    """A turn, and what its run in the sidecar has said so far. `stored` lines of it are."""

    turn_id: UUID
    journal: list[Event] = field(default_factory=list)
    stored: int = 0
    epoch: int | None = None
    state: str = "queued"
    cancel_requested: bool = False
    answers: dict[str, PermissionAnswer] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return bool(self.journal) and isinstance(self.journal[-1], TurnCompleted | TurnCancelled)

    @property
    def unanswered(self) -> list[str]:
        asked = [each.permission_id for each in self.journal if isinstance(each, PermissionAsked)]
        return [each for each in asked if each not in self.answers]


@dataclass
class Session:
    """What must be in the database."""

    id: UUID
    epoch: int = 0
    running: Run | None = None
    queue: list[Run] = field(default_factory=list)
    ran: list[Run] = field(default_factory=list)
    dropped: list[Run] = field(default_factory=list)
    transcript: list[tuple[UUID, dict[str, Any]]] = field(default_factory=list)
    lease: tuple[UUID | None, Deadline] | None = None
    hold: tuple[UUID, Deadline] | None = None
    questions: dict[str, Question] = field(default_factory=dict)


class Sidecars:
    """What an api asks of the sidecar: its runs are the model's."""

    def __init__(self) -> None:
        self.sessions: Sequence[Session] = ()

    async def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def answer(self, turn_id: UUID, permission_id: str, answer: PermissionAnswer) -> None:
        (session,) = [s for s in self.sessions if permission_id in s.questions]
        question = session.questions[permission_id]
        if question.state == "pending" and answer.by == TIMEOUT:
            question.state, question.option_id, question.by = "answered", "no", TIMEOUT
        given = (question.turn_id, question.state, question.option_id, question.by)
        assert given == (turn_id, "answered", answer.option_id, answer.by)
        assert not question.confirmed, "an answer that the run has confirmed is delivered again"
        run = session.running
        assert run is not None
        if permission_id not in run.answers and not run.has_ended:
            run.answers[permission_id] = answer
            run.journal.append(
                PermissionAnswered(
                    permission_id=permission_id, option_id=answer.option_id, by=answer.by
                )
            )


class Owner:
    """An api process, as far as it owns leases. It remembers every turn that it ever carried."""

    def __init__(self, database: Database, sidecars: Sidecars) -> None:
        nobody = cast(Listener, None)  # it is told of nothing: it looks when a rule says so
        sidecar = cast(Sidecar, sidecars)
        carrier = Carrier(database, sidecar, nobody, Limits(lease_seconds=LEASE))
        quotas = Quotas(cast(Stores, None), 0, 0)
        self.database = database
        self.holder = carrier.holder
        self.turns = Turns(database, sidecar, nobody, carrier, quotas, 1000, max_queued=100)
        self.permissions = Permissions(database, ANSWER)
        self.backup = uuid7()
        self.carried: dict[UUID, Carried] = {}
        self.deliveries: dict[UUID, Delivery] = {}
        self._sidecar, self._listener = sidecar, nobody

    def carry(self, turn: RunningTurn) -> None:
        self.carried[turn.id] = Carried(turn.id, turn.lease_epoch)
        self.deliveries[turn.id] = Delivery(
            turn, self.database, self._sidecar, self._listener, ANSWER
        )

    async def take_hold(self, session_id: UUID) -> tuple[bool, UUID | None]:
        """As a backup does; whether it has it, and which turn runs."""
        async with self.database.transaction() as conn:
            locked = await sessions.lock(conn, session_id)
            assert locked is not None
            return await holds.take(conn, session_id, self.backup), locked.running_turn


class TurnsMachine(Machine):
    def __init__(
        self, loop: asyncio.AbstractEventLoop, databases: Sequence[Database], control: Database
    ) -> None:
        super().__init__(loop)
        sidecars = Sidecars()
        self.owners = [Owner(database, sidecars) for database in databases]
        self.control = control
        self.sessions = [Session(uuid7()), Session(uuid7())]
        sidecars.sessions = self.sessions
        self.passed = 0.0
        self.numbers = count(1)
        self.run(self.insert_sessions())

    # ---- the clock, and what rules choose from

    def now(self) -> float:
        return time.monotonic() + self.passed

    @contextlib.contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Fills in when the calls of the block were made."""
        seen: list[float] = [self.now()]
        yield seen
        seen.append(self.now())

    def running(self) -> list[Session]:
        return [session for session in self.sessions if session.running is not None]

    def asked(self) -> list[tuple[Session, str]]:
        return [(session, each) for session in self.sessions for each in session.questions]

    def carried(self) -> list[tuple[Owner, Session, Run]]:
        """What each api carries, or has carried and not forgotten."""
        return [
            (owner, session, run)
            for owner in self.owners
            for session in self.sessions
            for run in (*session.ran, *([session.running] if session.running else []))
            if run.turn_id in owner.carried
        ]

    def carries(self, owner: Owner, session: Session, run: Run) -> bool:
        return run.state == "running" and owner.carried[run.turn_id].epoch == session.epoch

    # ---- turns

    @action(weight=3, who=either, which=mostly_first, queue=st.booleans())
    def start_turn(self, who: int, which: int, queue: bool) -> None:
        owner, session = self.owners[who], self.sessions[which]
        prompt = f"prompt {next(self.numbers)}"
        asked = Choices(permissions="ask")
        work = owner.turns.start(session.id, prompt, asked, queue=queue)
        if (session.running or session.queue) and not queue:
            with pytest.raises(TurnRunning):
                self.run(work)
            return
        with self.timed() as seen:
            turn = self.run(work)
        run = Run(turn.id)
        session.queue.append(run)
        during = During(*seen)
        if session.running or len(session.queue) > 1:
            assert turn.state == "queued"
        elif session.hold is not None and (over := during.is_over(session.hold[1])) is not True:
            assert turn.state == "queued" or over is None, "a turn started in a held session"
        else:
            assert turn.state == "running"
        self.prompts[turn.id] = prompt
        if turn.state == "running":
            self.begun(session, owner, during)
            running = self.run(self.read_running(owner, turn.id))
            owner.carry(running)

    def begun(self, session: Session, owner: Owner, during: During) -> None:
        """The first turn that waited runs, and has begun the next part of the transcript."""
        run = session.queue.pop(0)
        session.epoch += 1
        run.epoch, run.state, session.running = session.epoch, "running", run
        session.lease = (owner.holder.id, during.after(LEASE))
        session.transcript += [
            (run.turn_id, {"type": "turn.started"}),
            (run.turn_id, {"type": "message", "text": self.prompts[run.turn_id]}),
        ]

    @action(weight=2, who=either)
    def start_waiting(self, who: int) -> None:
        """What an api does when it looks for turns that wait."""
        owner = self.owners[who]
        for session in self.sessions:
            with self.timed() as seen:
                startable, turn = self.run(self.begin_next(owner, session))
            during = During(*seen)
            held = session.hold is not None and during.is_over(session.hold[1]) is not True
            sure = session.hold is None or during.is_over(session.hold[1]) is not None
            may = bool(session.queue) and session.running is None
            if sure:
                assert startable == (may and not held), "the wrong sessions are said to wait"
                assert (turn is not None) == (may and not held), "a hold or a turn was passed over"
            if turn is not None:
                assert may
                assert turn.id == session.queue[0].turn_id, "the queue's order is not kept"
                self.begun(session, owner, during)
                assert turn.lease_epoch == session.epoch
                owner.carry(turn)

    @action(who=either, which=mostly_first, number=any_number)
    def cancel_turn(self, who: int, which: int, number: int) -> None:
        owner, session = self.owners[who], self.sessions[which]
        known = [*session.queue, *([session.running] if session.running else []), *session.ran]
        if not known:
            return
        run = known[number % len(known)]
        work = owner.turns.cancel(session.id, run.turn_id)
        if run.state not in ("queued", "running"):
            with pytest.raises(NoTurnRunning):
                self.run(work)
            return
        self.run(work)
        if run.state == "queued":
            session.queue.remove(run)
            session.dropped.append(run)
            run.state = "cancelled"
        else:
            run.cancel_requested = True

    # ---- what runs say, and who stores it

    @action(
        weight=3,
        possible=lambda self: self.running(),
        number=any_number,
        what=st.sampled_from(("text", "text", "ask", "end")),
    )
    def say(self, number: int, what: str) -> None:
        session = self.running()[number % len(self.running())]
        run = session.running
        assert run is not None
        if run.has_ended:
            return
        if what == "text":
            run.journal.append(Message(role="assistant", text=f"word {next(self.numbers)}"))
        elif what == "ask":
            options = [option.model_dump() for option in OPTIONS]
            asked = PermissionAsked(permission_id=f"p-{next(self.numbers)}", options=options)
            run.journal.append(asked)
        elif run.cancel_requested:
            for each in run.unanswered:
                run.answers[each] = PermissionAnswer(option_id=None, by="cancel")
                run.journal.append(PermissionAnswered(permission_id=each, by="cancel"))
            run.journal.append(TurnCancelled(reason="asked to"))
        else:
            run.journal.append(TurnCompleted(stop_reason="end_turn"))

    @action(
        weight=4,
        possible=lambda self: self.carried(),
        number=any_number,
        by_its_owner=st.booleans(),
        again=st.integers(0, 2),
        most=st.sampled_from((1, 3, 50)),
    )
    def store_lines(self, number: int, by_its_owner: bool, again: int, most: int) -> None:
        """Lines of a run, by an api that carries it or has carried it at some time; also some that
        are stored already."""
        carried = self.carried()
        now = [each for each in carried if self.carries(*each)]
        among = now if by_its_owner and now else carried
        owner, session, run = among[-1 - number % len(among)]
        lease = owner.carried[run.turn_id]
        first = max(0, run.stored - again)
        lines = [Numbered(n + 1, event) for n, event in enumerate(run.journal)][first:][:most]
        if run.state != "running":
            assert self.run(record(owner.database, lease, lines)) is True
        elif lease.epoch != session.epoch:
            with pytest.raises(StaleEpoch):
                self.run(record(owner.database, lease, lines))
        else:
            with self.timed() as seen:
                ended = self.run(record(owner.database, lease, lines))
            new = [line.event for line in lines if cast(int, line.n) > run.stored]
            self.stored(session, run, new, During(*seen))
            assert ended == (run.state != "running")

    def stored(self, session: Session, run: Run, new: list[Event], during: During) -> None:
        run.stored += len(new)
        for event in new:
            session.transcript.append((run.turn_id, to_dict(event)))
            match event:
                case PermissionAsked():
                    question = Question(run.turn_id, during.after(ANSWER))
                    session.questions[event.permission_id] = question
                case PermissionAnswered():
                    question = session.questions[event.permission_id]
                    question.state, question.confirmed = "answered", True
                    question.option_id, question.by = event.option_id, event.by
                case TurnCompleted() | TurnCancelled():
                    run.state = event.type.removeprefix("turn.")
                    session.running, session.lease = None, None
                    session.ran.append(run)
                    for question in session.questions.values():
                        if question.state == "pending":
                            question.state = "closed"
                case _:
                    pass

    # ---- leases

    @action(who=either)
    def beat(self, who: int) -> None:
        """The heartbeat of an api, which may be late."""
        owner = self.owners[who]
        with self.timed() as seen:
            kept = self.run(self.extend(owner))
        assert set(kept) == {
            session.running.turn_id
            for session in self.running()
            if session.running and session.lease and session.lease[0] == owner.holder.id
        }
        for session in self.running():
            if session.running and session.running.turn_id in kept:
                assert kept[session.running.turn_id] == session.running.cancel_requested
                session.lease = (owner.holder.id, During(*seen).after(LEASE))

    @action(who=either)
    def give_up(self, who: int) -> None:
        """The end of an api, and another one in its place."""
        owner = self.owners[who]
        self.run(self.give_up_leases(owner))
        owner.carried, owner.deliveries = {}, {}
        for session in self.running():
            if session.lease and session.lease[0] == owner.holder.id:
                session.lease = (None, Deadline(-1.0, -1.0))

    @action(
        weight=2,
        possible=lambda self: self.running(),
        number=any_number,
        both=st.booleans(),
        who=either,
    )
    def take_over(self, number: int, both: bool, who: int) -> None:
        """One api, or both at once, look for turns that nobody carries any more."""
        session = self.running()[number % len(self.running())]
        run, lease = session.running, session.lease
        assert run is not None
        assert lease is not None
        owners = self.owners if both else [self.owners[who]]
        with self.timed() as seen:
            taken = self.run(self.take_together(session, run, owners))
        during = During(*seen)
        granted = [(owner, turn) for owner, turn in taken if turn is not None]
        assert len(granted) <= 1, "a lease was taken twice"
        free = during.is_over(lease[1])
        own = {owner.holder.id for owner in owners if run.turn_id in owner.carried}
        if free is False:
            assert not granted, "a lease was taken before its time"
        elif free and (both or lease[0] not in own):
            assert granted, "a lease that ran out was not taken"
        for owner, turn in granted:
            self.regranted(session, owner, turn, during)

    @action(possible=lambda self: self.running(), number=any_number, who=either)
    def seize(self, number: int, who: int) -> None:
        """As for a turn whose run does not end: whoever carries it."""
        session = self.running()[number % len(self.running())]
        owner, run = self.owners[who], session.running
        assert run is not None
        with self.timed() as seen:
            turn = self.run(seize(owner.database, session.id, run.turn_id, owner.holder))
        assert turn is not None
        self.regranted(session, owner, turn, During(*seen))

    def regranted(self, session: Session, owner: Owner, turn: RunningTurn, during: During) -> None:
        run = session.running
        assert run is not None
        session.epoch += 1
        assert (turn.id, turn.lease_epoch) == (run.turn_id, session.epoch)
        assert (turn.epoch, turn.last_source) == (run.epoch, run.stored)
        session.lease = (owner.holder.id, during.after(LEASE))
        owner.carry(turn)

    # ---- holds

    @action(weight=2, who=either, which=mostly_first)
    def hold(self, who: int, which: int) -> None:
        owner, session = self.owners[who], self.sessions[which]
        with self.timed() as seen:
            has, runs = self.run(owner.take_hold(session.id))
        during = During(*seen)
        assert runs == (session.running.turn_id if session.running else None)
        if session.hold is None or session.hold[0] == owner.backup:
            assert has
        elif (over := during.is_over(session.hold[1])) is not None:
            assert has == over, "a hold was stolen, or not taken after its end"
        if has:
            session.hold = (owner.backup, during.after(HOLD))

    @action(who=either)
    def renew_holds(self, who: int) -> None:
        owner = self.owners[who]
        with self.timed() as seen:
            self.run(self.with_connection(owner, lambda conn: holds.renew(conn, owner.backup)))
        for session in self.sessions:
            if session.hold is not None and session.hold[0] == owner.backup:
                session.hold = (owner.backup, During(*seen).after(HOLD))

    @action(who=either)
    def release_holds(self, who: int) -> None:
        owner = self.owners[who]
        self.run(self.with_connection(owner, lambda conn: holds.release(conn, owner.backup)))
        for session in self.sessions:
            if session.hold is not None and session.hold[0] == owner.backup:
                session.hold = None

    # ---- permissions

    @action(
        weight=2,
        possible=lambda self: self.asked(),
        number=any_number,
        options=st.tuples(*[st.sampled_from(("yes", "always", "no"))] * 2),
    )
    def answer_at_once(self, number: int, options: tuple[str, str]) -> None:
        """Two users, through two apis."""
        asked = self.asked()
        session, permission_id = asked[-1 - number % len(asked)]
        question = session.questions[permission_id]
        given = self.run(self.answer_both(session, permission_id, options))
        accepted = [(who, told) for who, told in enumerate(given) if told is not None]
        if question.state != "pending":
            assert not accepted, "an answer was accepted after another, or after the turn"
            return
        ((who, told),) = accepted
        assert told == options[who]
        question.state, question.option_id, question.by = "answered", told, f"user {who}"

    @action(who=either)
    def deliver(self, who: int) -> None:
        """What an api does for the questions of the turns that it carries, or once carried."""
        owner = self.owners[who]
        for carrying, session, run in self.carried():
            if carrying is not owner or run.state != "running":
                continue
            pending = [
                each
                for each in session.questions.values()
                if each.turn_id == run.turn_id and each.state == "pending"
            ]
            with self.timed() as seen:
                self.run(owner.deliveries[run.turn_id].deliver())
            for question in pending:
                over = During(*seen).is_over(question.deadline)
                rejected = question.by == TIMEOUT
                assert over is None or over == rejected, "a question is rejected when it is overdue"
            waiting = [
                name
                for name, each in session.questions.items()
                if each.turn_id == run.turn_id and each.state == "answered" and not each.confirmed
            ]
            assert run.has_ended or set(waiting) <= run.answers.keys(), "an answer is not delivered"

    # ---- time

    def deadlines(self) -> list[Deadline]:
        """Of all that runs out."""
        found = [each[1] for s in self.sessions for each in (s.lease, s.hold) if each is not None]
        questions = [each for s in self.sessions for each in s.questions.values()]
        found += [each.deadline for each in questions if each.state == "pending"]
        return found

    @action(weight=3, possible=lambda self: self.deadlines(), number=any_number, past=st.booleans())
    def wait(self, number: int, past: bool) -> None:
        """Until something has run out, or nearly."""
        deadline = self.deadlines()[number % len(self.deadlines())]
        seconds = deadline.latest - self.now() + (1.0 if past else -MARGIN)
        if seconds > 0:
            self.run(self.pass_time(seconds))
            self.passed += seconds

    # ---- what must hold

    @invariant()
    def database_is_as_the_model_says(self) -> None:
        for session in self.sessions:
            self.run(self.compare(session))

    async def compare(self, session: Session) -> None:
        async with self.control.connection() as conn:
            epoch = await rows.read_epoch(conn, session.id)
            stored_turns = await rows.list_turns(conn, session.id)
            stored_leases = await rows.list_leases(conn, session.id)
            stored_holds = await rows.list_holds(conn, session.id)
            answers = await rows.list_answers(conn, session.id)
            events = await rows.list_events(conn, session.id)
        running = [session.running] if session.running else []
        assert epoch == session.epoch
        assert [t for t in stored_turns if t[1] != "queued" and t[2] is not None] == [
            (run.turn_id, run.state, run.epoch) for run in (*session.ran, *running)
        ]
        assert [t[0] for t in stored_turns if t[1] == "queued"] == [
            r.turn_id for r in session.queue
        ]
        assert {t[0] for t in stored_turns if t[2] is None and t[1] == "cancelled"} == {
            run.turn_id for run in session.dropped
        }
        assert stored_leases == (
            {run.turn_id: session.lease[0] for run in running} if session.lease else {}
        )
        assert stored_holds == ([session.hold[0]] if session.hold else [])
        assert answers == {name: each.row for name, each in session.questions.items()}
        assert [seq for seq, _, _ in events] == list(range(1, len(session.transcript) + 1))
        for (_, turn_id, body), (wanted_turn, wanted) in zip(
            events, session.transcript, strict=True
        ):
            assert turn_id == wanted_turn
            assert {name: body.get(name) for name in wanted if name != "at"} == {
                name: value for name, value in wanted.items() if name != "at"
            }

    # ---- how it is done

    async def insert_sessions(self) -> None:
        self.prompts: dict[UUID, str] = {}
        async with self.control.connection() as conn:
            for session in self.sessions:
                new = sessions.NewSession(session.id, "", "claude", "local", None, None, "ask")
                await sessions.insert(conn, new)

    async def read_running(self, owner: Owner, turn_id: UUID) -> RunningTurn:
        async with owner.database.connection() as conn:
            found = await turns.running_one(conn, turn_id)
        assert found is not None
        return found

    async def begin_next(self, owner: Owner, session: Session) -> tuple[bool, RunningTurn | None]:
        async with owner.database.connection() as conn:
            startable = session.id in await turns.startable(conn)
        return startable, await begin_next(owner.database, session.id, owner.holder)

    async def extend(self, owner: Owner) -> dict[UUID, bool]:
        async with owner.database.connection() as conn:
            kept = await leases.extend(conn, owner.holder, owner.carried)
        return {each.turn_id: each.cancel_requested for each in kept}

    async def give_up_leases(self, owner: Owner) -> None:
        async with owner.database.transaction() as conn:
            await leases.give_up(conn, owner.holder)

    async def take_together(
        self, session: Session, run: Run, owners: Sequence[Owner]
    ) -> list[tuple[Owner, RunningTurn | None]]:
        async def one(owner: Owner) -> tuple[Owner, RunningTurn | None]:
            async with owner.database.connection() as conn:
                free = await leases.free(conn, owner.holder, owner.carried)
            if (run.turn_id, session.id) not in free:
                return owner, None
            return owner, await take_over(owner.database, session.id, run.turn_id, owner.holder)

        return await asyncio.gather(*(one(owner) for owner in owners))

    async def with_connection(self, owner: Owner, work: Callable[[Any], Any]) -> None:
        async with owner.database.connection() as conn:
            await work(conn)

    async def answer_both(
        self, session: Session, permission_id: str, options: tuple[str, str]
    ) -> tuple[str | None, str | None]:
        async def one(who: int) -> str | None:
            permissions = self.owners[who].permissions
            try:
                told = await permissions.answer(
                    session.id, permission_id, options[who], f"user {who}"
                )
            except AlreadyAnswered:
                return None
            return told.option_id

        return await asyncio.gather(one(0), one(1))

    async def pass_time(self, seconds: float) -> None:
        async with self.control.transaction() as conn:
            await rows.pass_time(conn, timedelta(seconds=seconds))

    def teardown(self) -> None:
        self.run(self.delete_sessions())

    async def delete_sessions(self) -> None:
        async with self.control.transaction() as conn:
            for session in self.sessions:
                for owner in self.owners:
                    await holds.release(conn, owner.backup)
                await sessions.delete(conn, session.id)


@pytest.fixture
async def databases(new_database: NewDatabase) -> AsyncIterator[list[Database]]:
    """A pool for each of two apis, and one for the test."""
    url = await new_database()
    async with open_database(url) as one, open_database(url) as two, open_database(url) as control:
        yield [one, two, control]


async def test_turns_of_two_owners(databases: list[Database]) -> None:
    loop, (*owners, control) = asyncio.get_running_loop(), databases

    def make() -> TurnsMachine:
        return TurnsMachine(loop, owners, control)

    await run_machine(make, choose_settings(EXAMPLES, STEPS), SEED)
