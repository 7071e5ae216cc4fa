"""Errors over the wire: the class the api raised is the class the caller catches."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr
from starlette.responses import HTMLResponse, JSONResponse, Response

from client import Holdfast
from client.wire import HTTPX_ERRORS, map_errors
from contracts import errors
from contracts.bodies import MAX_PROMPT_CHARS
from tests.support.client.wire_server import TOKEN, FakeApi
from tests.support.ports import closed_port


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
async def test_every_error_of_the_tree_comes_back_as_itself(
    api: FakeApi, hf: Holdfast, code: str
) -> None:
    cls = errors.BY_CODE[code]
    details = {"op": "create"} if issubclass(cls, errors.SandboxError) else {"turn_id": "t"}
    api.answers["/capabilities"] = cls("it broke", hint="mend it", **details)
    with pytest.raises(errors.HoldfastError) as caught:
        await hf.capabilities()
    assert type(caught.value) is cls
    assert caught.value.body() == cls("it broke", hint="mend it", **details).body()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (HTMLResponse("<h1>Bad gateway</h1>", 502), errors.Unavailable),
        (HTMLResponse("who are you?", 401), errors.Unauthenticated),
        (JSONResponse({"detail": "Not Found"}, 404), errors.NotFound),
        (JSONResponse(["not", "ours"], 400), errors.BadRequest),
        (JSONResponse({"error": "a string"}, 500), errors.HoldfastError),
        (Response(status_code=307, headers={"Location": "/"}), errors.HoldfastError),
    ],
)
async def test_answers_in_a_foreign_shape_are_told_apart_by_status(
    api: FakeApi, hf: Holdfast, answer: Response, expected: type[errors.HoldfastError]
) -> None:
    api.answers["/capabilities"] = answer
    with pytest.raises(errors.HoldfastError, match=str(answer.status_code)) as caught:
        await hf.capabilities()
    assert type(caught.value) is expected


async def test_an_answer_that_is_no_answer_says_what_may_be_wrong(
    api: FakeApi, hf: Holdfast
) -> None:
    api.answers["/capabilities"] = JSONResponse({"hello": "world"})
    with pytest.raises(errors.HoldfastError, match="not a Capabilities") as caught:
        await hf.capabilities()
    assert "versions" in caught.value.hint


async def test_nobody_there_is_unavailable_with_a_hint() -> None:
    async with Holdfast(f"http://127.0.0.1:{closed_port()}", TOKEN) as hf:
        with pytest.raises(errors.Unavailable) as caught:
            await hf.health()
    assert caught.value.hint == "is the stack up? make up"
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "not a url", "http://[::1"])
async def test_an_address_that_is_none_is_invalid_input(url: str) -> None:
    async with Holdfast(url, TOKEN) as hf:
        with pytest.raises(errors.InvalidInput):
            await hf.health()


def _concrete(root: type[httpx.RequestError]) -> Iterator[type[httpx.RequestError]]:
    yield root
    for child in root.__subclasses__():
        yield from _concrete(child)


@pytest.mark.parametrize("theirs", list(_concrete(httpx.RequestError)))
def test_every_error_of_httpx_is_mapped(theirs: type[httpx.RequestError]) -> None:
    with pytest.raises(errors.HoldfastError), map_errors("http://user:pw@127.0.0.1:1"):
        raise theirs("boom")


def test_rows_of_the_map_do_not_hide_one_another() -> None:
    rows = [row[0] for row in HTTPX_ERRORS]
    hidden = [(a, b) for n, a in enumerate(rows) for b in rows[n + 1 :] if issubclass(b, a)]
    assert hidden == []


async def test_the_token_is_sent_and_nowhere_shown(api: FakeApi, hf: Holdfast) -> None:
    await hf.health()
    assert api.tokens == {f"Bearer {TOKEN}"}
    shown = repr(hf) + repr(vars(hf)) + repr(vars(hf.sessions._wire))
    assert TOKEN not in shown


async def test_a_stack_that_is_not_ready_is_an_answer(hf: Holdfast) -> None:
    ready = await hf.ready()
    assert (ready.ready, ready.parts) == (False, {"database": "away"})


async def test_a_prompt_that_is_too_long_is_not_even_sent(api: FakeApi, hf: Holdfast) -> None:
    session = api.add_session()
    with pytest.raises(errors.TooLarge):
        await hf.turns.start(session.id, "x" * (MAX_PROMPT_CHARS + 1))
    with pytest.raises(errors.InvalidInput, match="prompt"):
        await hf.turns.start(session.id, "")
    with pytest.raises(errors.InvalidInput, match="prompt"):
        await hf.turns.start(session.id, "half a \ud83d")
    assert api.requests == []


async def test_the_http_client_given_is_used_and_left_open(api: FakeApi) -> None:
    async with httpx.AsyncClient(headers={"X-Through": "mine"}) as http:
        async with Holdfast(api.url, SecretStr(TOKEN), http=http) as hf:
            await hf.health()
        assert not http.is_closed
