"""The command router: what the SDK asks the worker of a sandbox for, without the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from grpclib import GRPCError, Status
from modal_proto import api_pb2, task_command_router_grpc
from modal_proto import task_command_router_pb2 as pb

from emulators.modal.execs import Command, Exec, Output, StdinClosed
from emulators.modal.sandboxes import Sandboxes
from emulators.modal.wire import WORKER, Service, Tokens


class Router(Service):
    generated = task_command_router_grpc.TaskCommandRouterBase

    def __init__(self, sandboxes: Sandboxes, tokens: Tokens) -> None:
        self._sandboxes = sandboxes
        self._tokens = tokens

    def admit(self, rpc: str, metadata: Mapping[str, str]) -> None:
        self._tokens.check(metadata.get("authorization", "").removeprefix("Bearer "), WORKER)

    async def TaskExecStart(self, request: pb.TaskExecStartRequest) -> pb.TaskExecStartResponse:
        sandbox = self._sandboxes.of_task(request.task_id)
        command = Command(
            list(request.command_args),
            request.workdir or sandbox.definition.workdir,
            {**request.env, **inline_env(request.secret_sources)},
            request.timeout_secs or None,
        )
        await self._sandboxes.exec(
            sandbox,
            request.exec_id,
            command,
            stdout=request.stdout_config != pb.TASK_EXEC_STDOUT_CONFIG_DEVNULL,
            stderr=request.stderr_config != pb.TASK_EXEC_STDERR_CONFIG_DEVNULL,
        )
        return pb.TaskExecStartResponse()

    async def TaskExecStdioRead(
        self, request: pb.TaskExecStdioReadRequest
    ) -> AsyncIterator[pb.TaskExecStdioReadResponse]:
        found = await self._exec(request)
        stdout = request.file_descriptor == pb.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        async for _, data in (found.stdout if stdout else found.stderr).since(request.offset):
            yield pb.TaskExecStdioReadResponse(data=data)

    async def TaskExecStdinWrite(
        self, request: pb.TaskExecStdinWriteRequest
    ) -> pb.TaskExecStdinWriteResponse:
        await _write(await self._exec(request), request.offset, request.data, eof=request.eof)
        return pb.TaskExecStdinWriteResponse()

    async def TaskExecStdinWriteStream(
        self, requests: AsyncIterator[pb.TaskExecStdinWriteStreamRequest]
    ) -> pb.TaskExecStdinWriteStreamResponse:
        start = (await anext(requests)).start
        found = await self._exec(start)
        offset = start.offset
        async for request in requests:
            # a stream that breaks off leaves stdin open: the SDK resumes it
            await _write(found, offset, request.data, eof=request.HasField("end"))
            offset += len(request.data)
        return pb.TaskExecStdinWriteStreamResponse()

    async def TaskExecStdinStatus(
        self, request: pb.TaskExecStdinStatusRequest
    ) -> pb.TaskExecStdinStatusResponse:
        found = await self._exec(request)
        return pb.TaskExecStdinStatusResponse(
            num_bytes_written=found.written, closed=found.stdin_closed
        )

    async def TaskExecPoll(self, request: pb.TaskExecPollRequest) -> pb.TaskExecPollResponse:
        code = (await self._exec(request)).exit_code
        if code is None:
            return pb.TaskExecPollResponse()
        return pb.TaskExecPollResponse(**_exit_status(code))

    async def TaskExecWait(self, request: pb.TaskExecWaitRequest) -> pb.TaskExecWaitResponse:
        found = await self._exec(request)
        await found.ended.wait()
        self._sandboxes.of_living_task(request.task_id)
        assert found.exit_code is not None
        return pb.TaskExecWaitResponse(**_exit_status(found.exit_code))

    async def SandboxStdioReadV2(
        self, request: pb.SandboxStdioReadV2Request
    ) -> AsyncIterator[pb.SandboxStdioReadV2Response]:
        sandbox = self._sandboxes.of_task(request.task_id)
        if sandbox.main is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the Sandbox has no output")
        stdout = request.file_descriptor == pb.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
        output: Output = sandbox.main.stdout if stdout else sandbox.main.stderr
        async for offset, data in output.since(request.offset):
            yield pb.SandboxStdioReadV2Response(data=data, starting_offset=offset)

    async def _exec(
        self,
        request: pb.TaskExecStdioReadRequest
        | pb.TaskExecStdinWriteRequest
        | pb.TaskExecStdinWriteStreamStart
        | pb.TaskExecStdinStatusRequest
        | pb.TaskExecPollRequest
        | pb.TaskExecWaitRequest,
    ) -> Exec:
        return await self._sandboxes.running(request.task_id, request.exec_id)


def inline_env(sources: Iterable[api_pb2.SecretSource]) -> dict[str, str]:
    """Variables that are sent along. Raises: GRPCError, for a secret that is kept elsewhere."""
    env: dict[str, str] = {}
    for source in sources:
        if source.secret_id:
            raise GRPCError(Status.NOT_FOUND, f"Secret {source.secret_id} not found")
        env |= source.env.contents
    return env


async def _write(found: Exec, offset: int, data: bytes, *, eof: bool) -> None:
    try:
        await found.write(offset, data, eof=eof)
    except StdinClosed as error:
        raise GRPCError(Status.FAILED_PRECONDITION, str(error)) from error
    except ValueError as error:
        raise GRPCError(Status.OUT_OF_RANGE, str(error)) from error


def _exit_status(code: int) -> dict[str, int]:
    return {"signal": -code} if code < 0 else {"code": code}
