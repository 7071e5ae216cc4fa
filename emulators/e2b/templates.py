"""E2B's API: templates and their builds. A build is checked and recorded, not carried out: every
sandbox is a box of the emulator's own image."""

from __future__ import annotations

import datetime
import hashlib
import secrets
import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

UPLOADS = "/uploads/"
DEFAULT_TAG = "default"
READY_MADE = ("base", "holdfast-sandbox")


class NoSuchTemplate(Exception):
    """No template of this name has a finished build of this tag."""


class _Asked(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    tags: list[str] = []


class _Step(BaseModel):
    type: str
    args: list[str] = []
    files: Annotated[str | None, Field(alias="filesHash")] = None


class _Start(BaseModel):
    from_image: Annotated[str, Field(alias="fromImage")] = ""
    from_template: Annotated[str, Field(alias="fromTemplate")] = ""
    steps: list[_Step] = []


@dataclass
class _Build:
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: Literal["waiting", "building", "ready", "error"] = "waiting"
    reason: str = ""
    log: list[str] = field(default_factory=list)
    at: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat())

    @classmethod
    def ready(cls) -> _Build:
        return cls(status="ready")


@dataclass
class _Template:
    id: str
    name: str
    # a tag has one build after another: the newest finished one counts
    builds: dict[str, list[_Build]] = field(default_factory=dict)

    def build(self, build_id: str) -> _Build | None:
        every = (build for builds in self.builds.values() for build in builds)
        return next((build for build in every if build.id == build_id), None)


class Templates:
    """The templates of one team."""

    def __init__(self) -> None:
        self._all = {
            name: _Template(name, name, {DEFAULT_TAG: [_Build.ready()]}) for name in READY_MADE
        }
        self._uploads: dict[str, str] = {}  # the last part of a URL -> the hash that it is for
        self._files: dict[str, str] = {}  # that hash -> the hash of what was uploaded

    def routes(self) -> list[Route]:
        return [
            Route("/v3/templates", self.request, methods=["POST"]),
            Route("/templates/{id}/files/{hash}", self.files, methods=["GET"]),
            Route("/v2/templates/{id}/builds/{build}", self.start, methods=["POST"]),
            Route("/templates/{id}/builds/{build}/status", self.status, methods=["GET"]),
            Route("/templates/aliases/{name:path}", self.exists, methods=["GET"]),
            Route("/templates/{id}/tags", self.tags, methods=["GET"]),
            Route(UPLOADS + "{upload}", self.upload, methods=["PUT"]),
        ]

    def check(self, name: str) -> _Template:
        """Whether there are sandboxes of it: `name`, or `name:tag`. Raises: NoSuchTemplate."""
        plain, _, tag = name.partition(":")
        template = self._find(plain)
        builds = template.builds.get(tag or DEFAULT_TAG, ()) if template else ()
        if template is None or not any(build.status == "ready" for build in builds):
            raise NoSuchTemplate(f"template '{name}' not found")
        return template

    async def request(self, request: Request) -> Response:
        try:
            asked = _Asked.model_validate_json(await request.body())
        except pydantic.ValidationError as error:
            return _refusal(400, str(error))
        name, _, tag = asked.name.partition(":")
        template = self._find(name)
        if template is None:
            template = self._all[name] = _Template(secrets.token_hex(10), name)
        tags = list(dict.fromkeys([*([tag] if tag else []), *asked.tags])) or [DEFAULT_TAG]
        build = _Build()
        for each in tags:
            template.builds.setdefault(each, []).append(build)
        answer = {
            "templateID": template.id,
            "buildID": build.id,
            "public": False,
            "names": [name],
            "tags": tags,
            "aliases": [name],
        }
        return JSONResponse(answer, 202)

    async def files(self, request: Request) -> Response:
        """Where the files of a COPY go, unless they are there already."""
        wanted = request.path_params["hash"]
        if wanted in self._files:
            return JSONResponse({"present": True}, 201)
        upload = secrets.token_hex(16)
        self._uploads[upload] = wanted
        url = str(request.base_url).rstrip("/") + UPLOADS + upload
        return JSONResponse({"present": False, "url": url}, 201)

    async def upload(self, request: Request) -> Response:
        """As to a signed URL: whoever knows it needs no key."""
        wanted = self._uploads.pop(request.path_params["upload"], None)
        if wanted is None:
            return _refusal(403, "this URL was not given out, or is used up")
        digest = hashlib.sha256()
        async for chunk in request.stream():
            digest.update(chunk)
        self._files[wanted] = digest.hexdigest()
        return Response(status_code=200)

    async def start(self, request: Request) -> Response:
        build = self._build(request)
        if build is None:
            return _refusal(404, "no such build")
        try:
            asked = _Start.model_validate_json(await request.body())
        except pydantic.ValidationError as error:
            return _refusal(400, str(error))
        if bool(asked.from_image) == bool(asked.from_template):
            return _refusal(400, "must specify either fromImage or fromTemplate")
        missing = [step for step in asked.steps if step.files and step.files not in self._files]
        build.log = [f"{step.type} {' '.join(step.args)}".strip() for step in asked.steps]
        if missing:
            build.status, build.reason = "error", f"files of {missing[0].args} were not uploaded"
        else:
            build.status = "building"
        return Response(status_code=202)

    async def status(self, request: Request) -> Response:
        """A build is ready when it was once seen building."""
        build = self._build(request)
        if build is None:
            return _refusal(404, "no such build")
        offset = int(request.query_params.get("logsOffset", "0"))
        body: dict[str, Any] = {
            "templateID": request.path_params["id"],
            "buildID": build.id,
            "status": build.status,
            "logs": [],
            "logEntries": [_entry(build, line) for line in build.log[offset : offset + 100]],
        }
        if build.reason:
            body["reason"] = {"message": build.reason}
        if build.status == "building":
            build.status = "ready"
        return JSONResponse(body)

    async def exists(self, request: Request) -> Response:
        """Without a tag, whether there is such a template at all."""
        name = request.path_params["name"]
        try:
            template = self.check(name) if ":" in name else self._find(name)
        except NoSuchTemplate as error:
            return _refusal(404, str(error))
        if template is None:
            return _refusal(404, f"template '{name}' not found")
        return JSONResponse({"templateID": template.id, "public": False})

    async def tags(self, request: Request) -> Response:
        template = self._find(request.path_params["id"])
        if template is None:
            return _refusal(404, "no such template")
        return JSONResponse(
            [
                {"tag": tag, "buildID": builds[-1].id, "createdAt": builds[-1].at}
                for tag, builds in template.builds.items()
            ]
        )

    def _find(self, name: str) -> _Template | None:
        """By name or by id."""
        by_id = (each for each in self._all.values() if each.id == name)
        return self._all.get(name) or next(by_id, None)

    def _build(self, request: Request) -> _Build | None:
        template = self._find(request.path_params["id"])
        return template.build(request.path_params["build"]) if template else None


def _entry(build: _Build, line: str) -> dict[str, str]:
    return {"timestamp": build.at, "message": line, "level": "info"}


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status)
