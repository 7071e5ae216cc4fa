"""SeaweedFS: master, volume server, filer and S3 in one process, on loopback only."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from typing import TYPE_CHECKING

import httpx

from stack.embedded.credentials import Credentials, write_s3_identities, write_s3_nobody
from stack.embedded.layout import Layout
from stack.embedded.part import Part
from stack.embedded.ports import GRPC_OFFSET, LOOPBACK, StorePorts
from stack.embedded.probes import answers, local_client
from stack.settings import Settings

if TYPE_CHECKING:
    from botocore.auth import S3SigV4Auth

NAME, GATE = "seaweedfs", "store-gate"
STATE_BUCKET = "state"
REGION = "us-east-1"
_PROBE_KEY = ".ready"
# A disk with less than this left counts as full.
_ROOM_BYTES = 64 << 20
# How long after the disk had no room what the store says of it is believed: names that an agent
# has given to its files are in its log too.
_BELIEF_SECONDS = 3600.0
_NO_ROOM = "no space left on device"


def s3_endpoint(ports: StorePorts) -> str:
    return f"http://{LOOPBACK}:{ports.s3}"


def seaweedfs_part(
    layout: Layout,
    weed: Path,
    ports: StorePorts,
    credentials: Credentials,
    buckets: tuple[str, ...],
    env: Mapping[str, str],
) -> Part:
    """The store of `layout`; ready means that every bucket takes an object."""
    identities = layout.secrets / "seaweedfs.json"
    probe = _StoreProbe(s3_endpoint(ports), credentials, buckets)
    disk = _FullDisk(layout.seaweedfs)

    async def prepare() -> None:
        write_s3_identities(identities, credentials)
        disk.forget()

    async def cleanup() -> None:
        _remove_sockets(ports)

    return Part(
        name=NAME,
        argv=(str(weed), "server", *_flags(layout, ports, identities)),
        cwd=layout.seaweedfs,
        # its own HOME: weed reads configuration from ~/.seaweedfs
        env={**env, "HOME": str(layout.seaweedfs)},
        prepare=prepare,
        cleanup=cleanup,
        is_ready=probe.is_ready,
        is_stuck=disk.is_over,
        hear=disk.hear,
        # Its filer waits 15 s for gRPC subscribers that never leave, its own among them, and by its
        # log no other part of weed begins to stop before that (4.48): 3 s, as it was, gained
        # nothing. By now no client of ours is left, and what it acknowledged survives SIGKILL: of
        # 754 files written through its filer while it was killed like this, none was lost.
        stop_signal=signal.SIGTERM,
        stop_seconds=0.5,
        stop_note="its filer would wait for its own subscribers: ended after 0.5 s",
    )


def store_gate_part(
    layout: Layout, weed: Path, ports: StorePorts, settings: Settings, env: Mapping[str, str]
) -> Part | None:
    """The store as sandboxes in a cloud get to see it: S3 alone, for keys of one session each. No
    administrator is known here, and no key can be made. None where no port is set for it."""
    port = settings.store_port
    if port is None:
        return None
    identities = layout.secrets / "store-gate.json"

    async def prepare() -> None:
        write_s3_nobody(identities)

    async def is_ready(_pid: int) -> bool:
        return await answers(f"http://{LOOPBACK}:{port}/healthz")

    return Part(
        name=GATE,
        argv=(
            *(str(weed), "s3", f"-filer={LOOPBACK}:{ports.filer}", f"-port={port}"),
            *(f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-port.grpc={port + GRPC_OFFSET}"),
            *(f"-localSocket={layout.control}/store-gate.sock", "-iam=false"),
            f"-config={identities}",
            *("-port.iceberg=0", "-port.lance=0"),
            # what is signed is the address that the client knows
            *([f"-externalUrl={settings.store_url}"] if settings.store_url else []),
        ),
        cwd=layout.seaweedfs,
        env={**env, "HOME": str(layout.control)},
        needs=(NAME,),
        prepare=prepare,
        is_ready=is_ready,
        stop_seconds=3.0,
    )


def _flags(layout: Layout, ports: StorePorts, identities: Path) -> tuple[str, ...]:
    return (
        f"-dir={layout.seaweedfs}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-master.port={ports.master}",
        f"-volume.port={ports.volume}",
        "-filer",
        f"-filer.port={ports.filer}",
        f"-filer.localSocket={layout.control}/filer.sock",
        "-s3",
        f"-s3.port={ports.s3}",
        f"-s3.localSocket={layout.control}/s3.sock",
        f"-s3.config={identities}",
        # keys for one session only are made and revoked through its IAM api
        "-s3.iam.readOnly=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        # A restart on existing data takes 2 s with this, 7 s or 15 s with longer ones: the volume
        # server asks again only after 5 s when its first heartbeat finds no leader.
        "-master.electionTimeout=400ms",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=0",
        "-volume.preStopSeconds=0",
    )


def _remove_sockets(ports: StorePorts) -> None:
    """weed puts a socket per gRPC port into /tmp and leaves some behind."""
    for port in asdict(ports).values():
        for socket in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):  # noqa: S108 - where weed puts them
            socket.unlink(missing_ok=True)


class _FullDisk:
    """Whether the store has to be started again because its disk was full.

    Each of its filer's databases (eight of goleveldb, 4.48) that met the full disk fails every
    later write until it is opened anew. What the store acknowledged before survives the kill.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._low_at = -math.inf
        self._met = False

    def forget(self) -> None:
        """It is started anew."""
        self._met = False

    def hear(self, line: str) -> None:
        """A line of its log. It says so again with every write that fails."""
        if _NO_ROOM in line and not self._met:
            self._has_room()
            self._met = time.monotonic() - self._low_at < _BELIEF_SECONDS

    async def is_over(self, _pid: int) -> bool:
        """Whether the store met a full disk that has room again."""
        return self._has_room() and self._met

    def _has_room(self) -> bool:
        try:
            room = disk_usage(self._directory).free >= _ROOM_BYTES
        except OSError:  # it cannot be looked at: nothing is known
            return False
        if not room:
            self._low_at = time.monotonic()
        return room


@dataclass(frozen=True)
class _StoreProbe:
    endpoint: str
    credentials: Credentials
    buckets: tuple[str, ...]

    async def is_ready(self, _pid: int) -> bool:
        """Make the buckets, then write to each: S3 answers seconds before a volume takes data."""
        # imported here, in the seconds that weed starts in
        from botocore.auth import S3SigV4Auth
        from botocore.credentials import Credentials as Key

        key = Key(
            self.credentials.s3_access_key.get_secret_value(),
            self.credentials.s3_secret_key.get_secret_value(),
        )
        signer = S3SigV4Auth(key, "s3", REGION)
        try:
            async with local_client() as client:
                if (await client.get(f"{self.endpoint}/healthz")).status_code != 200:
                    return False
                for bucket in self.buckets:
                    made = await self._send(client, signer, "PUT", bucket)
                    written = await self._send(client, signer, "PUT", f"{bucket}/{_PROBE_KEY}")
                    if made not in (200, 409) or written != 200:
                        return False
                    await self._send(client, signer, "DELETE", f"{bucket}/{_PROBE_KEY}")
        except httpx.TransportError:
            return False
        return True

    async def _send(
        self, client: httpx.AsyncClient, signer: S3SigV4Auth, method: str, path: str
    ) -> int:
        from botocore.awsrequest import AWSRequest

        url = f"{self.endpoint}/{path}"
        request = AWSRequest(method, url, data=b"")
        signer.add_auth(request)
        answer = await client.request(method, url, headers=dict(request.headers.items()))
        return answer.status_code
