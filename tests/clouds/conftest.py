"""A whole stack whose clouds are emulators: the real SDKs, harnesses and boxes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from pydantic import SecretStr

from client import Holdfast, Store
from client.settings import Target, open_store
from stack.embedded.ports import GRPC_OFFSET
from tests.support.emulators.fixtures import Emulate, Emulator
from tests.support.emulators.fixtures import arguments as arguments
from tests.support.emulators.fixtures import emulate as emulate
from tests.support.emulators.fixtures import root as root
from tests.support.light_agent.tree import light_agent
from tests.support.ports import free_port
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory

KEYS = {"e2b": "e2b-emulated", "modal": "ak-emulated:as-emulated", "daytona": "dtn-emulated"}


@dataclass(frozen=True)
class Clouds:
    """`workspace` is the engine that its sandboxes have."""

    stack: RunningStack
    emulators: dict[str, Emulator]
    workspace: str

    def store(self) -> Store:
        return open_store(Target(self.stack.url, SecretStr(self.stack.token), self.stack.data_dir))


@pytest.fixture(scope="session", params=["checkpoint", "geesefs"])
async def clouds(
    request: pytest.FixtureRequest, emulate: Emulate, sandbox_image: str, fuse: None
) -> AsyncIterator[Clouds]:
    more: list[str] = []
    if request.param == "geesefs":
        more = ["--geesefs", str(request.getfixturevalue("geesefs"))]
    gateway, store = free_port(), free_port(also=GRPC_OFFSET)
    reach = ["--reach", str(gateway), str(store)]
    async with contextlib.AsyncExitStack() as up:
        light = up.enter_context(light_agent(sandbox_image))
        more += ["--image", light["HOLDFAST_SANDBOX_IMAGE"]]
        found = {
            name: await up.enter_async_context(emulate(name, "--api-key", key, *reach, *more))
            for name, key in KEYS.items()
        }
        directory = up.enter_context(short_directory())
        token_id, _, token_secret = KEYS["modal"].partition(":")
        settings = {
            **light,
            "HOLDFAST_WORKSPACE": request.param,
            "HOLDFAST_CHECKPOINT_SECONDS": "3",
            "HOLDFAST_GATEWAY_PORT": str(gateway),
            "HOLDFAST_GATEWAY_URL": f"http://127.0.0.1:{gateway}",
            "HOLDFAST_STORE_PORT": str(store),
            "HOLDFAST_STORE_URL": f"http://127.0.0.1:{store}",
            "E2B_API_KEY": KEYS["e2b"],
            "E2B_API_URL": found["e2b"].url,
            "E2B_SANDBOX_URL": found["e2b"].url,
            "DAYTONA_API_KEY": KEYS["daytona"],
            "DAYTONA_API_URL": found["daytona"].url,
            "MODAL_TOKEN_ID": token_id,
            "MODAL_TOKEN_SECRET": token_secret,
            "MODAL_SERVER_URL": found["modal"].url,
            "HOLDFAST_MODAL_IMAGE": light["HOLDFAST_SANDBOX_IMAGE"],
            "HOLDFAST_MODAL_RUNTIME": "vm" if request.param == "geesefs" else "gvisor",
        }
        stack = await up.enter_async_context(running_stack(directory / "data", settings))
        yield Clouds(stack, found, request.param)
        # what is left is ended with the stack, and would be ended by the emulators too
        async with Holdfast(stack.url, stack.token) as hf:
            leaks = (await hf.leaks()).leaks
        assert leaks == [], json.dumps([leak.model_dump(mode="json") for leak in leaks])


@pytest.fixture
async def hf(clouds: Clouds) -> AsyncIterator[Holdfast]:
    async with Holdfast(clouds.stack.url, clouds.stack.token) as client:
        yield client
