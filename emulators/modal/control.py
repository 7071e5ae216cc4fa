"""The control plane: apps, images, sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from modal_proto import api_grpc
from modal_proto import api_pb2 as pb

from emulators.modal.images import SUCCESS, Images
from emulators.modal.ports import Ports
from emulators.modal.router import inline_env
from emulators.modal.sandboxes import TERMINATED, Sandboxes
from emulators.modal.wire import CLIENT, WORKER, Service, Tokens

# Later ones have more layers; the SDK asks for what the workspace is set to.
BUILDER_VERSION = "2025.06"
PAGE = 2  # so small that the SDK has to ask for more in every test


@dataclass(frozen=True)
class Account:
    token_id: str
    token_secret: str


class Control(Service):
    generated = api_grpc.ModalClientBase

    def __init__(
        self,
        account: Account,
        tokens: Tokens,
        images: Images,
        sandboxes: Sandboxes,
        ports: Ports,
    ) -> None:
        self._account = account
        self._tokens = tokens
        self._images = images
        self._sandboxes = sandboxes
        self._ports = ports
        self._apps: dict[str, str] = {}
        self.url = ""

    def admit(self, rpc: str, metadata: Mapping[str, str]) -> None:
        given = metadata.get("x-modal-token-id", ""), metadata.get("x-modal-token-secret", "")
        known = self._account.token_id, self._account.token_secret
        if not all(map(hmac.compare_digest, map(str.encode, given), map(str.encode, known))):
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        if rpc.startswith("Sandbox") and rpc != "SandboxGetFromName":
            self._tokens.check(metadata.get("x-modal-auth-token", ""), CLIENT)

    async def ClientHello(self, request: Empty) -> pb.ClientHelloResponse:
        return pb.ClientHelloResponse()

    async def AuthTokenGet(self, request: pb.AuthTokenGetRequest) -> pb.AuthTokenGetResponse:
        return pb.AuthTokenGetResponse(token=self._tokens.issue(CLIENT))

    async def EnvironmentGetOrCreate(
        self, request: pb.EnvironmentGetOrCreateRequest
    ) -> pb.EnvironmentGetOrCreateResponse:
        settings = pb.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        metadata = pb.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return pb.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    async def AppGetOrCreate(self, request: pb.AppGetOrCreateRequest) -> pb.AppGetOrCreateResponse:
        create = request.object_creation_type == pb.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        if request.app_name not in self._apps:
            if not create:
                raise GRPCError(Status.NOT_FOUND, f"App {request.app_name} not found")
            self._apps[request.app_name] = f"ap-{secrets.token_hex(11)}"
        return pb.AppGetOrCreateResponse(app_id=self._apps[request.app_name])

    # ---- images

    async def ImageGetOrCreate(
        self, request: pb.ImageGetOrCreateRequest
    ) -> pb.ImageGetOrCreateResponse:
        image_id, built = self._images.get_or_create(request.image, force=request.force_build)
        return pb.ImageGetOrCreateResponse(
            image_id=image_id,
            result=SUCCESS if built else None,
            metadata=pb.ImageMetadata(image_builder_version=request.builder_version),
        )

    async def ImageJoinStreaming(
        self, request: pb.ImageJoinStreamingRequest
    ) -> AsyncIterator[pb.ImageJoinStreamingResponse]:
        self._images.build(request.image_id)
        yield pb.ImageJoinStreamingResponse(result=SUCCESS, metadata=pb.ImageMetadata(), eof=True)

    async def ImageFromId(self, request: pb.ImageFromIdRequest) -> pb.ImageFromIdResponse:
        self._images.find(request.image_id)
        return pb.ImageFromIdResponse(image_id=request.image_id, metadata=pb.ImageMetadata())

    async def MountBatchedCheckExistence(
        self, request: pb.MountBatchedCheckExistenceRequest
    ) -> pb.MountBatchedCheckExistenceResponse:
        missing = self._images.missing(list(request.sha256_hex_hashes))
        return pb.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, request: pb.MountPutFileRequest) -> pb.MountPutFileResponse:
        self._images.put(request.sha256_hex, request.data)
        return pb.MountPutFileResponse(exists=True)

    async def MountGetOrCreate(
        self, request: pb.MountGetOrCreateRequest
    ) -> pb.MountGetOrCreateResponse:
        return pb.MountGetOrCreateResponse(mount_id=self._images.mount(list(request.files)))

    # ---- sandboxes

    async def SandboxCreateV2(
        self, request: pb.SandboxCreateV2Request
    ) -> pb.SandboxCreateV2Response:
        if request.app_id not in self._apps.values():
            raise GRPCError(Status.NOT_FOUND, f"App {request.app_id} not found")
        self._images.find(request.definition.image_id)
        sandbox = self._sandboxes.create(request, inline_env(request.secret_sources))
        return pb.SandboxCreateV2Response(
            sandbox_id=sandbox.id,
            task_id=sandbox.task_id,
            metadata=sandbox.metadata,
            command_router_access=self._access(),
        )

    async def SandboxGetFromNameV2(
        self, request: pb.SandboxGetFromNameRequest
    ) -> pb.SandboxGetFromNameResponse:
        app_id = self._apps.get(request.app_name, "")
        found = self._sandboxes.named(app_id, request.sandbox_name)
        if found is None and request.include_terminated:
            found = self._sandboxes.named(app_id, request.sandbox_name, ended=True)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_name} not found")
        return pb.SandboxGetFromNameResponse(sandbox_id=found.id, metadata=found.metadata)

    async def SandboxGetFromName(
        self, request: pb.SandboxGetFromNameRequest
    ) -> pb.SandboxGetFromNameResponse:
        """The SDK looks among V1 sandboxes too; there are none here."""
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {request.sandbox_name} not found")

    async def SandboxWaitV2(self, request: pb.SandboxWaitRequest) -> pb.SandboxWaitResponse:
        sandbox = self._sandboxes.find(request.sandbox_id)
        if request.timeout:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.timeout):
                    await sandbox.ended.wait()
        return pb.SandboxWaitResponse(result=sandbox.result, metadata=sandbox.metadata)

    async def SandboxGetTaskIdV2(
        self, request: pb.SandboxGetTaskIdRequest
    ) -> pb.SandboxGetTaskIdResponse:
        sandbox = self._sandboxes.find(request.sandbox_id)
        if sandbox.result is not None:
            return pb.SandboxGetTaskIdResponse(task_result=sandbox.result)
        return pb.SandboxGetTaskIdResponse(task_id=sandbox.task_id)

    async def SandboxGetCommandRouterAccess(
        self, request: pb.SandboxGetCommandRouterAccessRequest
    ) -> pb.SandboxGetCommandRouterAccessResponse:
        if self._sandboxes.find(request.sandbox_id).ending:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already finished")
        access = self._access()
        return pb.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxGetTunnelsV2(
        self, request: pb.SandboxGetTunnelsRequest
    ) -> pb.SandboxGetTunnelsResponse:
        sandbox = self._sandboxes.find(request.sandbox_id)
        await sandbox.box()
        tunnels = [
            await self._ports.tunnel(sandbox, port) for port in sandbox.definition.open_ports.ports
        ]
        return pb.SandboxGetTunnelsResponse(result=SUCCESS, tunnels=tunnels)

    async def SandboxCreateConnectTokenV2(
        self, request: pb.SandboxCreateConnectTokenRequest
    ) -> pb.SandboxCreateConnectTokenResponse:
        sandbox = self._sandboxes.find(request.sandbox_id)
        if sandbox.ending:
            raise GRPCError(Status.FAILED_PRECONDITION, "Sandbox has already finished")
        token = self._ports.connect_token(sandbox, request.port or 8080, request.user_metadata)
        return pb.SandboxCreateConnectTokenResponse(url=self._ports.url, token=token)

    async def SandboxListV2(self, request: pb.SandboxListRequest) -> pb.SandboxListResponse:
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            sandbox
            for sandbox in self._sandboxes.living(request.app_id, tags)
            if not request.before_timestamp or sandbox.created_at < request.before_timestamp
        ]
        return pb.SandboxListResponse(
            sandboxes=[
                pb.SandboxInfo(
                    id=sandbox.id,
                    created_at=sandbox.created_at,
                    name=sandbox.definition.name,
                    metadata=sandbox.metadata,
                )
                for sandbox in found[:PAGE]
            ]
        )

    async def SandboxTagsGetV2(
        self, request: pb.SandboxTagsGetRequest
    ) -> pb.SandboxTagsGetResponse:
        tags = self._sandboxes.find(request.sandbox_id).tags
        return pb.SandboxTagsGetResponse(
            tags=[pb.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
        )

    async def SandboxTagsSetV2(self, request: pb.SandboxTagsSetRequest) -> Empty:
        sandbox = self._sandboxes.find(request.sandbox_id)
        sandbox.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return Empty()

    async def SandboxTerminateV2(
        self, request: pb.SandboxTerminateRequest
    ) -> pb.SandboxTerminateResponse:
        sandbox = self._sandboxes.find(request.sandbox_id)
        before = sandbox.result
        terminated = pb.GenericResult.GENERIC_STATUS_TERMINATED
        await self._sandboxes.end(sandbox, terminated, TERMINATED)
        return pb.SandboxTerminateResponse(existing_result=before)

    def _access(self) -> pb.CommandRouterAccess:
        return pb.CommandRouterAccess(url=self.url, jwt=self._tokens.issue(WORKER))
