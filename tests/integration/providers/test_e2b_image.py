"""The template of E2B, made of sandbox-image/Dockerfile, on the real SDK and the emulator."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import e2b
import pytest

from contracts.errors import InvalidSpec, Unauthorized
from emulators.__main__ import running
from emulators.options import Options, Ready
from sidecar.providers.cloud import Cloud
from sidecar.providers.e2b import E2BAccount, E2BProvider
from sidecar.providers.e2b_image import build_image, template_of
from tests.support.paths import ROOT


@pytest.fixture(scope="module")
async def emulator(sandbox_image: str) -> AsyncIterator[Ready]:
    async with running("e2b", Options(image=sandbox_image)) as ready:
        yield ready


@pytest.fixture
def account(emulator: Ready) -> E2BAccount:
    """Of a template that nobody has built yet."""
    return E2BAccount(
        api_key=emulator.more["api_key"],
        template=f"built-{secrets.token_hex(4)}",
        api_url=emulator.url,
        sandbox_url=emulator.url,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Something like ours, but small: every way in which stages use each other."""
    (tmp_path / "sandbox-image").mkdir()
    (tmp_path / "sandbox-image" / "Dockerfile").write_text(
        """
ARG BASE=debian:trixie-slim
FROM ${BASE} AS packages
COPY --from=ghcr.io/astral-sh/uv:0.13.7 /uv /usr/local/bin/uv
WORKDIR /src
FROM packages AS tree
COPY files/ files/
RUN --mount=type=cache,target=/root/.npm make \\
    tree
FROM ${BASE} AS unused
RUN false
FROM ${BASE} AS sandbox
COPY --from=tree /opt/tree /opt/tree
COPY --from=tree /opt/other /opt/renamed
ARG FLAVOUR=none
COPY files/one files/absent* /opt/
ENV PATH=/opt/bin:/bin LANG=C.UTF-8
USER 1000:1000
ENTRYPOINT ["boxd"]
FROM unused AS another
FROM sandbox
"""
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one").write_text("one")
    return tmp_path


def test_the_stages_that_the_sandbox_needs_are_one_after_the_other(checkout: Path) -> None:
    text = e2b.AsyncTemplate.to_dockerfile(template_of(checkout, {"FLAVOUR": "sweet"}))
    lines = text.splitlines()
    assert lines[0] == "FROM debian:trixie-slim"
    assert "uv==0.13.7" in text
    steps = [line for line in lines if not line.startswith("RUN apt-get")]
    assert steps[steps.index("WORKDIR /src") :] == [
        "WORKDIR /src",
        "WORKDIR /src",  # where the stage before has ended
        "COPY files /src/files/",
        "RUN make     tree",
        "WORKDIR /",
        "RUN cp -aT /opt/other /opt/renamed",
        "ENV FLAVOUR=sweet",
        "COPY files/one /opt/",
        "ENV PATH=/opt/bin:/bin LANG=C.UTF-8",
        "WORKDIR /",
        "WORKDIR /",
        "RUN rm -rf /root/.npm /src /usr/local/bin/uv",
        "USER agent",
        "WORKDIR /home/agent",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "COPY --from=docker.io/other:1 /a /a",
        "RUN --mount=type=secret,id=key true",
        "HEALTHCHECK NONE",
    ],
)
def test_what_e2b_cannot_build_is_refused(checkout: Path, line: str) -> None:
    with (checkout / "sandbox-image" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write(f"{line}\n")
    with pytest.raises(InvalidSpec):
        template_of(checkout, {})


def test_our_own_image_can_be_built_by_e2b() -> None:
    text = e2b.AsyncTemplate.to_dockerfile(template_of(ROOT, {"BASE": "debian:trixie-slim"}))
    assert "COPY sandbox-image/boxd /opt/holdfast/boxd" in text
    assert "--from" not in text
    assert "--mount" not in text


async def test_a_build_of_the_same_content_is_one_build(
    account: E2BAccount, checkout: Path
) -> None:
    heard: list[str] = []
    first = await build_image(account, checkout, say=heard.append)
    assert any("make" in line for line in heard)
    before = await e2b.AsyncTemplate.get_tags(account.template, **account.params(0))
    heard.clear()
    assert await build_image(account, checkout, say=heard.append) == first
    assert heard == []
    assert await e2b.AsyncTemplate.get_tags(account.template, **account.params(0)) == before
    (checkout / "files" / "one").write_text("another")
    second = await build_image(account, checkout)
    assert second != first
    newest = {tag.tag: tag.build_id for tag in before}
    after = await e2b.AsyncTemplate.get_tags(account.template, **account.params(0))
    assert {tag.tag: tag.build_id for tag in after}["default"] != newest["default"]


async def test_a_template_that_was_built_is_there_to_make_sandboxes_of(
    account: E2BAccount, checkout: Path
) -> None:
    cloud = Cloud("test", "", b"secret", b"another", 600)
    async with E2BProvider.open(cloud, account) as provider:
        assert "images build" in await provider.trouble()
        built = await build_image(account, checkout)
        assert await provider.trouble() == ""
    for template in (built, account.template):
        sandbox = await e2b.AsyncSandbox.create(template, **account.params(0))
        assert await sandbox.kill()


async def test_a_build_with_a_wrong_key_is_refused(account: E2BAccount, checkout: Path) -> None:
    with pytest.raises(Unauthorized):
        await build_image(replace(account, api_key="e2b_another"), checkout)
