"""Paths, names and bodies that were made to do harm, sent to every route that takes them."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.paths import workspace_path
from api.zipped import _is_plain
from contracts.bodies import Session
from contracts.errors import InvalidPath
from sidecar.boxhost.walker import Walker
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector
from tests.support.api.serving import TOKEN, Api, assert_error, make_settings, serve_api, served
from tests.support.s3 import open_s3
from tests.support.services import SeaweedFS

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

VICTIM = b"another session's"


@pytest.fixture(scope="module")
async def api(new_database: NewDatabase, store_service: SeaweedFS) -> AsyncIterator[Api]:
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        made = make_settings(await new_database(), store_service, sidecar_url)
        async with serve_api(made, injector) as running:
            yield running


@pytest.fixture(scope="module")
async def s3(api: Api, store_service: SeaweedFS) -> AsyncIterator[S3Client]:
    async with open_s3(store_service) as client:
        yield client


@pytest.fixture(scope="module")
async def session(api: Api) -> Session:
    return await api.new_session()


@pytest.fixture(scope="module")
async def victim(api: Api, s3: S3Client) -> Session:
    other = await api.new_session()
    await s3.put_object(Bucket="sessions", Key=f"{other.id}/secret", Body=VICTIM)
    return other


# As they stand in the request line: nothing tidies them up on the way. `V` is the victim.
ENCODED = [
    "../V/secret",
    "..%2fV%2fsecret",
    "%2e%2e/V/secret",
    "%2e%2e%2fV%2fsecret",
    "a/../../V/secret",
    "a/%2e%2e/%2e%2e/V/secret",
    "..%5cV%5csecret",
    "..\\V\\secret",
    "%252e%252e%252fV%252fsecret",
    "%c0%ae%c0%ae/V/secret",
    "%c0%ae%c0%ae%c0%afV%c0%afsecret",
    "%e0%80%ae%e0%80%ae/V/secret",
    "%ef%bc%8e%ef%bc%8e/V/secret",
    "%e2%80%a5/V/secret",
    "....//V/secret",
    "..;/V/secret",
    "..%00/V/secret",
    "secret%00",
    "%00",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "//V/secret",
    "./secret",
    ".",
    "..",
    "%2e",
    "%2e%2e",
    "a/.",
    "a/..",
    "a//b",
    "a/",
    "%0d%0aSet-Cookie:%20a=b",
    "%ed%a0%80",
    "%ff%fe",
    "a" * 1025,
    "a/" * 600 + "a",
]
# Names that are strange and yet names: kept as they are, never made into another one.
NAMES = [
    "a.",
    "a ",
    " a",
    "a..",
    "...",
    "..a",
    "con",
    "a\tb",
    "a\nb",
    "\x1b[2J",
    "\u202egpj.exe",
    "e\u0301",
    "\u00e9",
    "\uff0e\uff0e",
    "%2e%2e",
    "a%00b",
    "a;b",
    "a?b#c",
    "a'b\"c",
    "$(id)",
    "-rf",
]


async def raw(api: Api, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request, byte for byte."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("latin-1") + body)
        answer = await reader.read()
        writer.close()
    first, _, rest = answer.partition(b"\r\n")
    return int(first.split()[1]), rest


@pytest.mark.parametrize("path", ENCODED)
async def test_no_route_takes_a_path_that_leads_out(
    api: Api, s3: S3Client, session: Session, victim: Session, path: str
) -> None:
    evil = path.replace("V", str(victim.id))
    top = f"/sessions/{session.id}"
    asked = [
        ("GET", f"{top}/files/{evil}", b""),
        ("PUT", f"{top}/files/{evil}?replace=true", b"overwritten"),
        ("DELETE", f"{top}/files/{evil}", b""),
        ("GET", f"{top}/files?path={evil}", b""),
        ("GET", f"{top}/live?path={evil}", b""),
        ("GET", f"{top}/live/file?path={evil}", b""),
        ("GET", f"{top}/zip?path={evil}", b""),
    ]
    answers = await asyncio.gather(*(raw(api, *each) for each in asked))
    for each, (status, answer) in zip(asked, answers, strict=True):
        assert status < 500, (each, answer)
        assert VICTIM not in answer, each
        assert b"\r\nset-cookie" not in answer.lower()
    await is_unharmed(s3, victim)


@pytest.mark.parametrize(
    "path",
    [
        *("../V/secret", "..\\V\\secret", "/V/secret", "a/../../V/secret", "\0", "a\0b"),
        *("", ".", "..", "a//b", "a/", "./a", "\ud800", "a" * 1025),
    ],
)
async def test_no_body_takes_a_path_that_leads_out(
    api: Api, s3: S3Client, session: Session, victim: Session, path: str
) -> None:
    evil = path.replace("V", str(victim.id))
    top = f"/sessions/{session.id}"
    for route, body in [
        ("folders", {"path": evil}),
        ("move", {"source": evil, "target": "b"}),
        ("move", {"source": "b", "target": evil}),
    ]:
        answer = await api.http.post(
            f"{top}/{route}",
            content=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 400, (route, body, answer.text)
    await is_unharmed(s3, victim)


async def is_unharmed(s3: S3Client, victim: Session) -> None:
    """The other session is as it was."""
    answer = await s3.get_object(Bucket="sessions", Key=f"{victim.id}/secret")
    assert await answer["Body"].read() == VICTIM
    listed = await s3.list_objects_v2(Bucket="sessions", Prefix=f"{victim.id}/")
    assert listed["KeyCount"] == 1


@pytest.mark.parametrize("name", NAMES)
async def test_a_strange_name_is_kept_as_it_is(api: Api, session: Session, name: str) -> None:
    place = f"/sessions/{session.id}/files/{quote(f'strange/{name}', safe='/')}"
    if "\\" in name or name.startswith("\x1b"):
        return
    put = await api.http.put(place, content=name.encode())
    assert put.status_code == 201, put.text
    assert put.json()["name"] == name
    got = await api.http.get(place, params={"download": "true"})
    assert got.content == name.encode()
    assert "\n" not in got.headers["content-disposition"]
    listed = await api.http.get(f"/sessions/{session.id}/files", params={"path": "strange"})
    assert name in [entry["name"] for entry in listed.json()["entries"]]
    assert (await api.http.delete(place)).status_code == 200
    assert (await api.http.get(place)).status_code == 404


@pytest.mark.parametrize("change", ["delete", "move"])
async def test_what_is_done_to_a_name_is_not_done_to_one_that_begins_with_it(
    api: Api, change: str
) -> None:
    top = f"/sessions/{(await api.new_session()).id}"
    for path in ("a/x", "ab/x", "a.b", "a b", "a-/x"):
        assert (await api.http.put(f"{top}/files/{path}", content=b"x")).status_code == 201
    if change == "delete":
        assert (await api.http.delete(f"{top}/files/a")).status_code == 200
    else:
        moved = await api.http.post(f"{top}/move", json={"source": "a", "target": "c"})
        assert moved.status_code == 200, moved.text
    assert (await api.http.get(f"{top}/files/a/x")).status_code == 404
    for path in ("ab/x", "a.b", "a b", "a-/x"):
        assert (await api.http.get(f"{top}/files/{path}")).status_code == 200, path


STRANGE_TEXTS = ["\x07\x1b[2J", "\u202e", "\u2028", "é" * 100, "<script>", "{{7*7}}", "'; --"]


@pytest.mark.parametrize("text", STRANGE_TEXTS)
async def test_titles_and_prompts_come_back_as_they_went_in(api: Api, text: str) -> None:
    made = await api.new_session(title=text)
    assert made.title == text
    turn = await api.ended(await api.start(made.id, prompt=f"{text}\0"))
    assert turn.prompt == f"{text}\0"
    said = [event for event in await api.events(made.id) if event["type"] == "message"]
    assert said[0]["text"] == f"{text}\0"


@pytest.mark.parametrize(
    "body",
    [
        {"title": "a\0b"},
        {"title": "x" * 201},
        {"title": 7},
        {"title": ["x"]},
        {"model": "\0"},
        {"model": "x" * 201},
        {"reasoning": "\0"},
        {"harness": "../../etc"},
        {"harness": "\0"},
        {"provider": "http://127.0.0.1:1/"},
        {"provider": {"a": 1}},
        {"permissions": "root"},
        {"durability": "x"},
        {"unknown": 1},
    ],
)
async def test_a_session_with_a_field_that_cannot_be_is_refused(
    api: Api, body: dict[str, Any]
) -> None:
    answer = await api.http.post("/sessions", json=body)
    assert answer.status_code == 400, answer.text
    assert {"code", "message", "hint"} <= answer.json()["error"].keys()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": ' + b"9" * 100_000 + b"}",
        b'{"prompt": NaN}',
        b'{"prompt": "x", "prompt": 7}',
        b"null",
        b"",
        b"\0",
    ],
)
async def test_a_body_that_is_no_body_is_refused(api: Api, session: Session, body: bytes) -> None:
    for route in (f"/sessions/{session.id}/turns", "/invoke", "/sessions"):
        headers = {"Content-Type": "application/json"}
        answer = await api.http.post(route, content=body, headers=headers)
        if route == "/sessions" and not body:
            continue
        assert answer.status_code == 400, (route, answer.text)
        assert answer.json()["error"]["code"] in ("invalid_input", "bad_request")


@pytest.mark.parametrize("cursor", ["x", "=" * 100, "W10", "W1siYSIsICJiIl0", "\ud7ff", "A" * 7999])
async def test_a_foreign_cursor_is_refused(api: Api, session: Session, cursor: str) -> None:
    for route in ("/sessions", f"/sessions/{session.id}/turns", f"/sessions/{session.id}/files"):
        answer = await api.http.get(route, params={"cursor": cursor})
        assert_error(answer, 400, "invalid_input")


@given(path=st.text(max_size=60))
def test_a_path_that_is_taken_stays_below_the_workspace(path: str) -> None:
    try:
        taken = workspace_path(path)
    except InvalidPath:
        return
    assert taken == path
    assert not {"", ".", ".."} & set(taken.split("/"))
    assert not set("\0\\") & set(taken)


@given(path=st.text(st.sampled_from("./\\ab\0%2e~"), max_size=30))
def test_no_mixture_of_dots_and_slashes_gets_out(path: str) -> None:
    try:
        taken = workspace_path(path, root=True)
    except InvalidPath:
        return
    depth = 0
    for step in taken.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(step, 1)
        assert depth >= 0


@given(path=st.text(max_size=40))
@settings(max_examples=60)
async def test_any_path_at_all_is_answered(api: Api, session: Session, path: str) -> None:
    try:
        target = quote(path, safe="/")
    except UnicodeEncodeError:
        return
    status, _ = await raw(api, "GET", f"/sessions/{session.id}/files/{target}")
    assert status in (400, 404)


@pytest.mark.parametrize("name", ["../x", "a/../b", "/x", "a\\b", "..", ".", "a//b", "", "a\0"])
def test_an_archive_has_no_name_that_leads_out(name: str) -> None:
    assert not _is_plain(name)
    assert _is_plain("a/b..c/.d")


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Where fifty thousand files take no disk a minute."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


def test_a_directory_of_fifty_thousand_names_is_listed_page_by_page(in_memory: Path) -> None:
    for number in range(50_000):
        os.mknod(in_memory / f"{number:05}")
    walker = Walker(str(in_memory))
    found: list[str] = []
    after = ""
    for _ in range(11):
        page = walker.listing("", after=after, limit=5000)
        assert len(page["entries"]) <= 5000
        found += [entry["name"] for entry in page["entries"]]
        after = page["upto"]
        if not after:
            break
    assert found == [f"{number:05}" for number in range(50_000)]
