"""A session's files under every engine, held against a model: agents and users change them, turns
end, sandboxes are killed, sidecars start again, and the session goes from one engine to another."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant
from uuid_utils.compat import uuid7

from api.edits import Edits
from api.quota import Quotas
from api.sidecar import Sidecar as SidecarClient
from api.store import Stores, open_stores
from contracts.bodies import Changed, Durability, Edited, FilesDeleted, RunRequest, Session
from contracts.errors import SandboxNotFound
from contracts.events import EventBase
from sidecar.boxhost.boxes import Boxes
from sidecar.boxhost.contract import MountSick
from sidecar.boxhost.daemons import Daemons, Geesefs, Weed
from sidecar.boxhost.in_process import OwnBoxes, OwnMounts
from sidecar.boxhost.mounts import Mounts
from sidecar.boxhost.walker import YOUNG_NS
from sidecar.providers.base import WORKSPACE, Command
from sidecar.providers.local import LocalProvider
from sidecar.runs.gateway import Gateway
from sidecar.runs.live import Live, LiveSandboxes
from sidecar.runs.sandboxes import Providers, Sandboxes, Warmth
from sidecar.workspace import edits
from sidecar.workspace.barrier import Proof, nobody
from sidecar.workspace.checkpoint import with_checkpoint
from sidecar.workspace.engine import Durable, DurableSandbox, Workspace
from sidecar.workspace.fencing import Fence
from sidecar.workspace.geesefs import with_geesefs
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.in_box import Parts
from sidecar.workspace.manifest import Edit, Manifests
from sidecar.workspace.store import Store, StoreAddress
from sidecar.workspace.weed import with_weed
from stack.install.binaries import find_weed
from stack.settings import Settings
from tests.support.api.serving import make_settings
from tests.support.models import Machine, action, choose_settings, run_machine
from tests.support.s3 import open_s3
from tests.support.services import STATE_BUCKET, SeaweedFS
from tests.support.workspace_model import (
    AGENT_KINDS,
    NAMES,
    Change,
    Node,
    Tree,
    change,
    delete,
    files_of,
    free_places,
    is_within,
    movable,
    move,
    parents_of,
    put_parents,
    rebuild,
    upload_places,
)

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

EXAMPLES, STEPS, SEED = 4, 30, 1
SYNC_SECONDS = 15.0
COMING = ".holdfast-upload-"  # a file of a user's that is on its way in

# Kind, sha256, mode and target of each path, by a manifest or by a look.
Told = Mapping[str, tuple[str, str | None, int, str | None]]

number = st.integers(0, 15)
changes = st.lists(
    st.builds(Change, st.sampled_from(AGENT_KINDS), number, number), min_size=1, max_size=4
)


class NoGateway:
    """Sandboxes get a socket that nobody listens on: no agent here asks a model."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def open(self, session_id: str) -> Path:
        socket = self._directory / session_id / "sock"
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.touch()
        return socket

    async def close_session(self, session_id: str) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Place:
    """What outlives a sidecar: directories, the store, and programs."""

    engine: str
    home: Path
    bwrap: Path
    daemons: Mapping[str, Daemons]
    store: Store
    keys: SessionKeys
    address: StoreAddress
    stores: Stores  # the api's
    s3: S3Client  # nobody else's

    @property
    def boxes(self) -> Boxes:
        return Boxes(self.home / "data", self.home / "run", self.bwrap)


class SidecarLife:
    """All that one process of a sidecar has in memory, and what the api asks of it."""

    def __init__(self, place: Place) -> None:
        data = place.home / "data"
        local = LocalProvider(OwnBoxes(place.boxes, {}))
        mounts = OwnMounts(Mounts(data), place.daemons, place.address.bucket)
        self.manifests = Manifests(place.store.in_bucket(STATE_BUCKET))
        parts = Parts(place.store, self.manifests, Fence(mounts, place.keys), place.address)
        self._copied = with_checkpoint(local, parts, SYNC_SECONDS, "a test")
        self._usual: Any = self._copied
        if place.engine != "checkpoint":
            wrap = with_geesefs if place.engine == "geesefs" else with_weed
            self._usual = wrap(local, mounts, place.store, self.manifests, place.keys)
        self.sandboxes = Sandboxes(
            Providers(
                {"local": cast(Durable, self._usual)}, {"local": cast(Durable, self._copied)}
            ),
            cast(Gateway, NoGateway(place.home / "run" / "gateway")),
            LiveSandboxes(data),
            Warmth(600.0, 16),
        )

    async def aclose(self) -> None:
        """Its processes end with it; sandboxes and mounts stay."""
        await self._copied.aclose()
        await self._usual.aclose()

    async def put_file(
        self, session_id: UUID, path: str, content: AsyncIterator[bytes], *, replace: bool
    ) -> Changed:
        return await edits.put(await self._mounted(session_id), path, content, replace=replace)

    async def make_folder(self, session_id: UUID, path: str) -> Changed:
        return await edits.mkdir(await self._mounted(session_id), path)

    async def move(self, session_id: UUID, source: str, target: str) -> Changed:
        return await edits.move(await self._mounted(session_id), source, target)

    async def delete_file(self, session_id: UUID, path: str) -> FilesDeleted:
        return await edits.delete(await self._mounted(session_id), path)

    @contextlib.asynccontextmanager
    async def hold(self, session_id: UUID, noted: list[Edited]) -> AsyncIterator[None]:
        async with self.sandboxes.unmounted(session_id):
            for each in noted:
                await self.manifests.edited(str(session_id), Edit(each.source, each.target))
            yield

    async def _mounted(self, session_id: UUID) -> Workspace:
        workspace = await self.sandboxes.mounted(session_id)
        if workspace is None:
            raise SandboxNotFound("nothing is mounted")
        return workspace


@dataclass(frozen=True)
class OpenTurn:
    request: RunRequest
    sandbox: DurableSandbox
    live: Live


class WorkspaceMachine(Machine):
    def __init__(self, loop: asyncio.AbstractEventLoop, place: Place) -> None:
        super().__init__(loop)
        self.place = place
        self.life = SidecarLife(place)
        self.session_id = uuid7()
        self.numbers = count(100_000)
        self.epoch = 0
        self.turn: OpenTurn | None = None
        self.box: DurableSandbox | None = None  # that lives, in a turn or after it
        self.durability: Durability = "mount"
        # The workspace, what the store must have of it, and what the last receipt says of it.
        self.tree: Tree = {}
        self.stored: dict[str, bytes] = {}
        self.proven: Tree = {}
        self.receipt = ""
        self.is_fresh = False  # nobody has looked into the sandbox yet

    @property
    def copied(self) -> bool:
        """Whether the engine of the last turn is one that copies."""
        return self.place.engine == "checkpoint" or self.durability == "checkpoint"

    @property
    def api(self) -> Edits:
        client = cast(SidecarClient, self.life)
        quotas = Quotas(self.place.stores, 0, 0)
        return Edits(self.place.stores, client, 1 << 20, quotas, _is_kept)

    def fresh(self) -> str:
        return str(next(self.numbers))

    # ---- turns

    @action(weight=2, possible=lambda self: self.turn is None, copied=st.booleans())
    def begin_turn(self, copied: bool) -> None:
        durability: Durability = "checkpoint" if copied else "mount"
        moved = durability != self.durability and self.place.engine != "checkpoint"
        if self.box is None or moved:
            self.tree = rebuild(self.stored, self.proven, self.tree)
            self.is_fresh = True
        self.durability = durability
        self.epoch += 1
        request = RunRequest(
            turn_id=uuid7(),
            session_id=self.session_id,
            epoch=self.epoch,
            prompt="",
            harness="claude",
            provider="local",
            durability=durability,
        )
        self.turn = self.run(self.acquire(request))
        self.box = self.turn.sandbox

    async def acquire(self, request: RunRequest) -> OpenTurn:
        sandboxes = self.life.sandboxes
        await sandboxes.lock(self.session_id).acquire()
        sandbox, live = await sandboxes.acquire(request, _silent)
        return OpenTurn(request, sandbox, live)

    @action(weight=6, possible=lambda self: self.turn is not None, what=changes)
    def work(self, what: list[Change]) -> None:
        """The agent changes files."""
        assert self.turn is not None
        scripts = [change(self.tree, each, self.fresh) for each in what]
        script = "; ".join(each for each in scripts if each)
        if script:
            self.run(self.execute(self.turn.sandbox, script))
        if not self.copied:
            self.stored = files_of(self.tree)

    @action(possible=lambda self: self.turn is not None)
    def copy(self) -> None:
        """What an engine that copies does every few seconds of a turn."""
        assert self.turn is not None
        self.run(self.turn.sandbox.workspace.sync())
        self.stored = files_of(self.tree)

    @action(
        weight=3,
        possible=lambda self: self.turn is not None,
        beside=st.sampled_from(("nothing", "upload", "copy")),
        at=number,
    )
    def end_turn(self, beside: str, at: int) -> None:
        """With its receipt; at the same moment a user may upload something, or what a user has
        uploaded before may be on its way to the store."""
        turn = self.turn
        assert turn is not None
        places = upload_places(self.tree)
        if beside == "upload" and places:
            path, data = places[at % len(places)], self.fresh().encode()
            after = dict(self.tree)
            put_parents(after, path)
            after[path] = Node("file", data)
            proof = self.run(self.prove_while(turn, self.put(path, data)))
            self.check_receipt(proof, turn, self.tree, after)
            self.tree = after
        elif beside == "copy":
            proof = self.run(self.prove_while(turn, turn.sandbox.workspace.sync()))
            self.check_receipt(proof, turn, self.tree)
        else:
            proof = self.run(self.prove(turn))
            self.check_receipt(proof, turn, self.tree)
        self.stored = files_of(self.tree)
        self.run(self.let_go(turn))
        self.turn = None

    async def prove(self, turn: OpenTurn) -> Proof:
        """As a turn does at its end."""
        sandbox, sandboxes = turn.sandbox, self.life.sandboxes
        turn_id, epoch = str(turn.request.turn_id), turn.request.epoch
        async with sandbox.frozen():
            try:
                return await sandbox.workspace.barrier(turn_id, epoch, sandbox.held)
            except MountSick:
                if not await sandboxes.is_gone(turn.live):
                    raise
                left = await sandboxes.workspace(turn.request)
                return await left.barrier(turn_id, epoch, nobody)

    async def prove_while(self, turn: OpenTurn, beside: Awaitable[object]) -> Proof:
        async with asyncio.TaskGroup() as group:
            proving = group.create_task(self.prove(turn))
            await beside
        return proving.result()

    async def let_go(self, turn: OpenTurn) -> None:
        await self.life.sandboxes.keep_warm(turn.live, _silent)
        self.life.sandboxes.lock(self.session_id).release()

    def check_receipt(self, proof: Proof, turn: OpenTurn, *possible: Tree) -> None:
        """The receipt is of one of these trees, all of it is in the store, and the manifest is
        what the receipt says. What it is of counts as proven from now on."""
        document = self.run(
            self.read_object(STATE_BUCKET, f"manifests/{turn.request.turn_id}.json")
        )
        assert hashlib.sha256(document).hexdigest() == proof.manifest_sha256
        self.receipt = proof.manifest_sha256
        entries = [
            each
            for each in json.loads(document)["entries"]
            if not each["path"].rpartition("/")[2].startswith(COMING)
        ]
        told = {
            each["path"]: (each["kind"], each["sha256"], each["mode"], each["target"])
            for each in entries
        }
        faults = [_misfit(tree, told) for tree in possible]
        assert "" in faults, f"the receipt is of other files: {faults}"
        tree = possible[faults.index("")]
        files = [each for each in entries if each["kind"] == "file"]
        assert len(files) <= proof.files <= len(files) + (len(possible) > 1)
        self.proven = {
            path: replace(tree[path], mode=mode, sure=True)
            for path, (_, _, mode, _) in told.items()
        }

    # ---- users

    @action(weight=3, at=number, empty=st.sampled_from((False, False, False, True)))
    def upload(self, at: int, empty: bool) -> None:
        places = upload_places(self.tree)
        if not places:
            return
        path, data = places[at % len(places)], b"" if empty else self.fresh().encode()
        self.run(self.put(path, data))
        put_parents(self.tree, path)
        self.tree[path] = Node("file", data)
        if empty:
            self.proven.pop(path, None)
        self.edited({path: data})

    async def put(self, path: str, data: bytes) -> None:
        async def content() -> AsyncIterator[bytes]:
            yield data

        class OnlyId:
            id = self.session_id

        await self.api.put(cast(Session, OnlyId), path, content(), replace=True)

    # Not between turns: an empty folder that no receipt has is not copied into a sandbox.
    @action(possible=lambda self: self.turn is not None, at=number)
    def make_folder(self, at: int) -> None:
        places = free_places(self.tree)
        if not places:
            return
        path = places[at % len(places)]
        self.run(self.api.mkdir(self.session_id, path))
        put_parents(self.tree, path)
        self.tree[path] = Node("directory", sure=self.box is not None)
        self.edited({})

    @action(at=number, to=number)
    def move_by_user(self, at: int, to: int) -> None:
        sources = list(movable(self.tree))
        if not sources:
            return
        source = sources[at % len(sources)]
        targets = [name for name in free_places(self.tree) if not is_within(name, source)]
        if not targets:
            return
        target = targets[to % len(targets)]
        self.run(self.api.move(self.session_id, source, target))
        put_parents(self.tree, target)
        move(self.tree, source, target)
        move(self.proven, source, target)
        moved = {path: data for path, data in self.stored.items() if is_within(path, source)}
        for path, data in moved.items():
            del self.stored[path]
            self.stored[target + path[len(source) :]] = data
        self.edited({})

    @action(at=number)
    def delete_by_user(self, at: int) -> None:
        paths = list(movable(self.tree))
        if not paths:
            return
        path = paths[at % len(paths)]
        self.run(self.api.delete(self.session_id, path))
        delete(self.tree, path)
        delete(self.proven, path)
        self.stored = {each: d for each, d in self.stored.items() if not is_within(each, path)}
        self.edited({})

    def edited(self, put: Mapping[str, bytes]) -> None:
        """An edit of a workspace that is there brings all of it to the store."""
        if self.box is not None:
            self.stored = files_of(self.tree)
        else:
            self.stored |= put

    # ---- what goes wrong, and what is routine

    @action(possible=lambda self: self.box is not None)
    def kill(self) -> None:
        """SIGKILL of the sandbox. A turn ends with a receipt of what is left."""
        turn, was_copied = self.turn, self.copied
        killed = self.run(self.life.sandboxes.kill(self.session_id))
        assert killed.killed
        self.box = None
        if was_copied:
            self.tree = rebuild(self.stored, self.proven, self.tree)
        if turn is not None:
            proof = self.run(self.prove(turn))
            self.check_receipt(proof, turn, self.tree_left(was_copied))
            assert bool(proof.lost) == was_copied
            self.run(self.let_go(turn))
            self.turn = None

    def tree_left(self, was_copied: bool) -> Tree:
        """Of a sandbox's disk, a receipt need not tell directories that follow from the files."""
        return {
            path: replace(node, sure=path in self.proven)
            if was_copied and node.kind == "directory"
            else node
            for path, node in self.tree.items()
        }

    @action(possible=lambda self: self.turn is None and self.box is not None)
    def cool_down(self) -> None:
        """The sandbox has waited long enough for another turn."""
        self.run(self.end_sandbox())
        self.box = None
        self.tree = rebuild(self.stored, self.proven, self.tree)

    async def end_sandbox(self) -> None:
        sandboxes = self.life.sandboxes
        async with sandboxes.lock(self.session_id):
            live = sandboxes.live.get(self.session_id)
            assert live is not None
            await sandboxes.end(live, _silent)

    @action(weight=2, possible=lambda self: self.turn is None and self.epoch > 0)
    def restart_between_turns(self) -> None:
        self.restart()

    @action()
    def restart(self) -> None:
        """Of the sidecar: what it had in memory is gone, sandboxes and mounts are not."""
        self.run(self.life.aclose())
        self.life = SidecarLife(self.place)
        self.place.boxes.thaw_all()
        if self.turn is not None:
            self.turn = self.run(self.rejoin(self.turn))
            self.box = self.turn.sandbox
            if self.copied:
                self.stored = files_of(self.tree)

    async def rejoin(self, turn: OpenTurn) -> OpenTurn:
        sandboxes = self.life.sandboxes
        await sandboxes.lock(self.session_id).acquire()
        sandbox, live = await sandboxes.rejoin(turn.request, turn.sandbox.id, _silent)
        return OpenTurn(turn.request, sandbox, live)

    @action(possible=lambda self: self.turn is not None)
    def grow_old(self) -> None:
        """Until no file is so young that it is read again in any case."""
        until = time.time_ns() + YOUNG_NS
        self.run(_wait_until(until))

    # ---- what must hold

    @invariant()
    def store_has_what_is_acknowledged(self) -> None:
        assert self.run(self.read_store()) == self.stored

    @invariant()
    def sandbox_shows_the_workspace(self) -> None:
        if self.box is None:
            return
        shown = self.look(self.box)
        if self.is_fresh:
            self.tree |= self.leftovers(shown)
            self.is_fresh = False
        assert _misfit(self.tree, shown) == ""
        # What nobody could say before is as it is now.
        self.tree = {
            path: replace(node, mode=shown[path][2], sure=True)
            for path, node in self.tree.items()
            if path in shown
        }

    def leftovers(self, shown: Told) -> Tree:
        """Empty directories that only a mount shows: SeaweedFS keeps them for a while when their
        last object is deleted."""
        full = {above for path in files_of(self.tree) for above in parents_of(path)}
        return {
            path: Node("directory")
            for path, (kind, *_) in shown.items()
            if kind == "directory" and path not in self.tree and path not in full
        }

    @invariant()
    def latest_manifest_is_that_of_the_last_receipt(self) -> None:
        if self.receipt:
            latest = json.loads(self.run(self.read_object(STATE_BUCKET, "manifests/latest.json")))
            assert latest["manifest_sha256"] == self.receipt

    async def read_store(self) -> dict[str, bytes]:
        """Every object's bytes: an ETag stays as it was when a mount writes to a file in place."""
        prefix, bucket = f"{self.session_id}/", self.place.address.bucket
        listed = await self.place.s3.list_objects_v2(Bucket=bucket, Prefix=prefix)
        assert not listed["IsTruncated"]
        found = {}
        for item in listed.get("Contents", []):
            path = item["Key"][len(prefix) :]
            if not path.endswith("/"):
                found[path] = await self.read_object(bucket, path)
        return found

    async def read_object(self, bucket: str, path: str) -> bytes:
        answer = await self.place.s3.get_object(Bucket=bucket, Key=f"{self.session_id}/{path}")
        return await answer["Body"].read()

    async def execute(self, sandbox: DurableSandbox, script: str) -> bytes:
        done = await sandbox.exec(Command(["sh", "-ec", script]))
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def look(self, sandbox: DurableSandbox) -> Told:
        """All that is in the workspace, as the sandbox's processes have it."""
        box = self.place.boxes.get(sandbox.id)
        assert box is not None
        top = Path(f"/proc/{box.first.pid}/root{WORKSPACE}")
        return {str(path.relative_to(top)): _describe(path) for path in top.rglob("*")}

    def teardown(self) -> None:
        self.run(self.end_all())

    async def end_all(self) -> None:
        sandboxes = self.life.sandboxes
        if sandboxes.lock(self.session_id).locked():
            sandboxes.lock(self.session_id).release()
        await sandboxes.release(self.session_id)
        await self.life.aclose()


def _describe(path: Path) -> tuple[str, str | None, int, str | None]:
    info = path.lstat()
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        return "symlink", None, mode, str(path.readlink())
    if stat.S_ISDIR(info.st_mode):
        return "directory", None, mode, None
    return "file", hashlib.sha256(path.read_bytes()).hexdigest(), mode, None


def _misfit(tree: Tree, told: Told) -> str:
    """How what is told differs from the tree; nothing when it does not."""
    unknown = told.keys() - tree.keys()
    if unknown:
        return f"nobody made {sorted(unknown)}"
    for path, node in tree.items():
        if path not in told:
            if node.sure:
                return f"{path} is missing"
            continue
        kind, sha256, mode, target = told[path]
        if kind != node.kind:
            return f"{path} is a {kind} and not a {node.kind}"
        if kind == "file" and sha256 != hashlib.sha256(node.data).hexdigest():
            return f"{path} has other bytes than {node.data!r}"
        if kind == "symlink" and target != node.target:
            return f"{path} leads to {target}"
        if kind != "symlink" and node.mode is not None and mode != node.mode:
            return f"{path} has mode {mode:o} and not {node.mode:o}"
    return ""


async def _is_kept(_: UUID) -> None:
    """No session of the model is deleted."""


async def _silent(_: EventBase) -> None:
    """Nobody follows the turns."""


async def _wait_until(nanoseconds: int) -> None:
    while time.time_ns() <= nanoseconds:
        await asyncio.sleep(0.05)


@pytest.fixture
async def place(
    request: pytest.FixtureRequest,
    short_dir: Path,
    bwrap: Path,
    fuse: None,
    store: Store,
    address: StoreAddress,
    store_service: SeaweedFS,
) -> AsyncIterator[Place]:
    engine: str = request.param
    daemons: dict[str, Daemons] = {}
    if engine == "geesefs":
        binary = request.getfixturevalue("geesefs")
        daemons["geesefs"] = Geesefs(binary, address.endpoint, address.bucket)
    elif engine == "weed":
        weed, cache, sockets = find_weed(Settings()), short_dir / "cache", short_dir / "run" / "w"
        daemons["weed"] = Weed(weed, store_service.filer, address.bucket, cache, sockets)
    api = make_settings(
        "postgresql://", store_service, "", s3_bucket=address.bucket, s3_state_bucket=STATE_BUCKET
    )
    async with (
        SessionKeys.open(address) as keys,
        open_stores(api) as stores,
        open_s3(store_service) as s3,
    ):
        made = Place(engine, short_dir, bwrap, daemons, store, keys, address, stores, s3)
        yield made
        await made.boxes.stop_all()
        await Mounts(short_dir / "data").stop_all()


@pytest.mark.parametrize("place", ["weed", "checkpoint", "geesefs"], indirect=True)
async def test_files_of_a_session(place: Place) -> None:
    loop = asyncio.get_running_loop()

    def make() -> WorkspaceMachine:
        return WorkspaceMachine(loop, place)

    await run_machine(make, choose_settings(EXAMPLES, STEPS), SEED)


async def play(place: Place, script: Callable[[WorkspaceMachine], None]) -> None:
    """Known steps, with all that must hold after them."""
    loop = asyncio.get_running_loop()

    def do() -> None:
        machine = WorkspaceMachine(loop, place)
        try:
            script(machine)
            machine.store_has_what_is_acknowledged()
            machine.sandbox_shows_the_workspace()
            machine.latest_manifest_is_that_of_the_last_receipt()
        finally:
            machine.teardown()

    await asyncio.to_thread(do)


@pytest.mark.parametrize("place", ["checkpoint"], indirect=True)
async def test_a_user_changes_files_after_the_sandbox_that_had_them_was_killed(
    place: Place,
) -> None:
    def script(machine: WorkspaceMachine) -> None:
        machine.begin_turn(copied=True)
        machine.work([Change("write", 0, 0)])
        machine.end_turn("nothing", 0)
        machine.kill()
        machine.upload(at=1, empty=False)
        machine.delete_by_user(at=0)
        machine.begin_turn(copied=True)

    await play(place, script)


@pytest.mark.parametrize("place", ["weed"], indirect=True)
async def test_a_file_that_becomes_what_it_was_under_another_engine_is_copied(place: Place) -> None:
    """SeaweedFS keeps the ETag of an upload although a weed mount has written to the file since."""

    def script(machine: WorkspaceMachine) -> None:
        data = iter(["first", "other", "first"])
        machine.fresh = lambda: next(data)  # type: ignore[method-assign]
        machine.upload(at=0, empty=False)
        machine.begin_turn(copied=False)
        machine.work([Change("rewrite", 0, 0)])
        machine.end_turn("nothing", 0)
        machine.begin_turn(copied=True)
        machine.work([Change("rewrite", 0, 0)])
        machine.end_turn("nothing", 0)

    await play(place, script)


@pytest.mark.parametrize("place", ["weed"], indirect=True)
async def test_a_file_in_the_place_of_a_directory_is_one_under_another_engine(place: Place) -> None:
    def script(machine: WorkspaceMachine) -> None:
        machine.begin_turn(copied=True)
        machine.upload(at=NAMES.index("d/a"), empty=False)
        machine.work([Change("delete", 0, 0)])
        machine.copy()
        machine.work([Change("write", upload_places({}).index("d"), 0)])
        machine.end_turn("nothing", 0)
        assert machine.tree["d"].kind == "file"
        machine.begin_turn(copied=False)

    await play(place, script)


@pytest.mark.parametrize("place", ["weed"], indirect=True)
async def test_a_file_in_the_place_of_a_users_folder_is_one_under_another_engine(
    place: Place,
) -> None:
    def script(machine: WorkspaceMachine) -> None:
        machine.make_folder(at=NAMES.index("d"))
        machine.begin_turn(copied=True)
        machine.sandbox_shows_the_workspace()
        assert "d" not in machine.tree, "an empty folder of the store is not copied"
        machine.work([Change("write", upload_places({}).index("d"), 0)])
        machine.end_turn("nothing", 0)
        machine.begin_turn(copied=False)

    await play(place, script)
