"""Images by the hash of what they are built from, and the files of their contexts by hash. Nothing
is built: every box of an emulator is made of the one image that it was started with."""

from __future__ import annotations

import hashlib

from grpclib import GRPCError, Status
from modal_proto import api_pb2

Result = api_pb2.GenericResult
SUCCESS = Result(status=Result.GENERIC_STATUS_SUCCESS)


class Images:
    def __init__(self) -> None:
        self._built: dict[str, bool] = {}
        self._files: set[str] = set()
        self.builds: list[str] = []

    def get_or_create(self, definition: api_pb2.Image, *, force: bool) -> tuple[str, bool]:
        """Its id, and whether it is built. Raises: GRPCError, for an unknown base."""
        for base in definition.base_images:
            self.find(base.image_id)
        digest = hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()
        image_id = f"im-{digest[:22]}"
        if force:
            self._built[image_id] = False
        return image_id, self._built.setdefault(image_id, False)

    def find(self, image_id: str) -> None:
        """Raises: GRPCError."""
        if image_id not in self._built:
            raise GRPCError(Status.NOT_FOUND, f"Image {image_id} not found")

    def build(self, image_id: str) -> None:
        """Raises: GRPCError."""
        self.find(image_id)
        if not self._built[image_id]:
            self._built[image_id] = True
            self.builds.append(image_id)

    def missing(self, hashes: list[str]) -> list[str]:
        return [each for each in hashes if each not in self._files]

    def put(self, digest: str, data: bytes) -> None:
        """Raises: GRPCError, when the data is another file's."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise GRPCError(Status.INVALID_ARGUMENT, "the data has another hash")
        self._files.add(digest)

    def mount(self, files: list[api_pb2.MountFile]) -> str:
        """Raises: GRPCError, when a file was not put."""
        if self.missing([file.sha256_hex for file in files]):
            raise GRPCError(Status.FAILED_PRECONDITION, "a file of the mount is not there")
        listed = sorted(f"{file.filename} {file.sha256_hex} {file.mode}" for file in files)
        return f"mo-{hashlib.sha256(repr(listed).encode()).hexdigest()[:22]}"
