"""Our own services as parts: gateway, sidecar, api."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from stack.embedded import postgres, seaweedfs
from stack.embedded.credentials import Credentials, kept_token
from stack.embedded.layout import Layout
from stack.embedded.part import Hook, Part
from stack.embedded.ports import LOOPBACK, StorePorts
from stack.embedded.probes import answers
from stack.embedded.processes import run_tool
from stack.install.everything import Installed
from stack.settings import Settings, inherited_environment

GATEWAY, SIDECAR, API = "gateway", "sidecar", "api"
# A hundred of them, on a machine that is busy: what is not ended in time is left behind.
BOXES_SECONDS = 180.0
DEFAULT_OPENAI_MODEL = "gpt-5.5"


@dataclass(frozen=True)
class Wiring:
    """All that the services' environments are made of."""

    settings: Settings
    layout: Layout
    installed: Installed
    credentials: Credentials
    ports: StorePorts
    # whether the last supervisor may have left boxes and mounts behind
    after_crash: bool


def gateway_part(wiring: Wiring) -> Part:
    """The one part that knows the model keys."""
    settings, layout = wiring.settings, wiring.layout
    env = _python(network=True) | {
        "HOLDFAST_GATEWAY_CONTROL": str(layout.gateway_control),
        "HOLDFAST_GATEWAY_DIR": str(layout.gateway_sessions),
        "HOLDFAST_GATEWAY_SECRET": wiring.credentials.gateway_secret.get_secret_value(),
        **_given("HOLDFAST_GATEWAY_PORT", settings.gateway_port),
        "HOLDFAST_LOG_LEVEL": settings.log_level,
        "HOLDFAST_LOG_FORMAT": settings.log_format,
        **_given("HOLDFAST_EGRESS_ALLOW", settings.egress_allow),
        **_given("HOLDFAST_EGRESS_PORTS", settings.egress_ports),
        **_given("HOLDFAST_EGRESS_TUNNELS", settings.egress_tunnels),
        **_given("HOLDFAST_EGRESS_BYTES", settings.egress_bytes),
        **_given("HOLDFAST_EGRESS_IDLE_SECONDS", settings.egress_idle_seconds),
        **_given("ANTHROPIC_API_KEY", settings.anthropic_api_key),
        **_given("ANTHROPIC_BASE_URL", settings.anthropic_base_url),
        **_given("OPENAI_API_KEY", settings.openai_api_key),
        **_given("OPENAI_BASE_URL", settings.openai_base_url),
        **_given("HOLDFAST_MODEL_PRICES", settings.model_prices),
    }

    async def is_ready(_pid: int) -> bool:
        return await answers("http://gateway/healthz", socket=layout.gateway_control)

    return Part(
        name=GATEWAY,
        argv=_module("sidecar.gateway"),
        cwd=layout.data,
        env=env,
        is_ready=is_ready,
    )


def sidecar_part(wiring: Wiring) -> Part:
    layout = wiring.layout

    async def is_ready(_pid: int) -> bool:
        return await answers("http://sidecar/healthz", socket=layout.sidecar_socket)

    return Part(
        name=SIDECAR,
        argv=_module("sidecar"),
        cwd=layout.data,
        env=_python(network=True) | _sidecar_environment(wiring),
        uses=(seaweedfs.NAME, GATEWAY),
        # boxes and mounts outlive a sidecar by design, but not the stack
        first=stop_boxes(wiring) if wiring.after_crash else None,
        cleanup=stop_boxes(wiring),
        is_ready=is_ready,
        stop_seconds=35.0,
    )


def api_part(wiring: Wiring) -> Part:
    settings, layout = wiring.settings, wiring.layout
    env = _python() | {
        "HOLDFAST_API_HOST": settings.api_host,
        "HOLDFAST_API_PORT": str(settings.api_port),
        # the file and not what is in it: `holdfast token rotate` replaces it under a running api
        "HOLDFAST_API_TOKEN_FILE": str(layout.token),
        "HOLDFAST_DATABASE_URL": postgres.database_url(layout),
        "HOLDFAST_SIDECAR_URL": f"unix:{layout.sidecar_socket}",
        "HOLDFAST_SIDECAR_SECRET": wiring.credentials.sidecar_secret.get_secret_value(),
        **_given("HOLDFAST_PERMISSION_SECONDS", settings.permission_seconds),
        **_given("HOLDFAST_UPLOAD_BYTES", settings.upload_bytes),
        **_given("HOLDFAST_ALLOWED_HOSTS", settings.allowed_hosts),
        **_given("HOLDFAST_SESSIONS_PER_TOKEN", settings.sessions_per_token),
        **_given("HOLDFAST_AUDIT_DAYS", settings.audit_days),
        **_given("HOLDFAST_AUDIT_ROWS", settings.audit_rows),
        **_given("HOLDFAST_BODY_BYTES", settings.body_bytes),
        **_given("HOLDFAST_PROMPT_CHARS", settings.prompt_chars),
        **_given("HOLDFAST_ZIP_BYTES", settings.zip_bytes),
        **_given("HOLDFAST_ZIP_FILES", settings.zip_files),
        **_given("HOLDFAST_FOLLOWERS", settings.followers),
        **_given("HOLDFAST_UNREAD_SECONDS", settings.unread_seconds),
        **_shared(wiring),
    }

    async def is_ready(_pid: int) -> bool:
        # read anew: it may have been rotated since the stack was started
        token = kept_token(layout)
        if token is None:
            return False
        bearer = {"Authorization": f"Bearer {token.get_secret_value()}"}
        return await answers(f"{settings.url}/readyz", headers=bearer)

    return Part(
        name=API,
        argv=_module("api"),
        cwd=layout.data,
        env=env,
        needs=(postgres.NAME,),
        uses=(seaweedfs.NAME, SIDECAR),
        is_ready=is_ready,
        stop_seconds=15.0,
    )


def _sidecar_environment(wiring: Wiring) -> dict[str, str]:
    settings, layout, installed = wiring.settings, wiring.layout, wiring.installed
    return {
        "HOLDFAST_SIDECAR_LISTEN": f"unix:{layout.sidecar_socket}",
        "HOLDFAST_SIDECAR_SECRET": wiring.credentials.sidecar_secret.get_secret_value(),
        "HOLDFAST_DATA_DIR": str(layout.data),
        "HOLDFAST_RUN_DIR": str(layout.run),
        "HOLDFAST_FILER": f"{LOOPBACK}:{wiring.ports.filer}",
        "HOLDFAST_HARNESS_DIR": str(installed.tree.path),
        "HOLDFAST_NODE": str(installed.node.path),
        "HOLDFAST_BWRAP": str(installed.bwrap),
        "HOLDFAST_WEED": str(installed.weed),
        "HOLDFAST_GEESEFS": str(installed.geesefs.path or ""),
        "HOLDFAST_WORKSPACE": settings.workspace,
        "HOLDFAST_GATEWAY_CONTROL": str(layout.gateway_control),
        **_given("HOLDFAST_EVENTS_PER_SECOND", settings.events_per_second),
        **_given("HOLDFAST_EVENT_BYTES", settings.event_bytes),
        **_given("HOLDFAST_TURN_EVENTS", settings.turn_events),
        **_given("HOLDFAST_TURN_BYTES", settings.turn_bytes),
        **_given("HOLDFAST_TURN_SECONDS", settings.turn_seconds),
        **_given("HOLDFAST_WARM_SECONDS", settings.warm_seconds),
        **_given("HOLDFAST_WARM_SANDBOXES", settings.warm_sandboxes),
        **_given("HOLDFAST_DOCKER_SOCKET", settings.docker_socket),
        **_given("HOLDFAST_SANDBOX_IMAGE", settings.sandbox_image),
        **_given("HOLDFAST_DOCKER_MEMORY", settings.docker_memory),
        **_given("HOLDFAST_DOCKER_CPUS", settings.docker_cpus),
        **_given("HOLDFAST_DOCKER_PIDS", settings.docker_pids),
        **_cloud_environment(wiring),
        **_given("HOLDFAST_ANTHROPIC_MODEL", settings.anthropic_model),
        **_given("HOLDFAST_OPENAI_MODEL", settings.openai_model or _openai_default(settings)),
        **_shared(wiring),
    }


def _cloud_environment(wiring: Wiring) -> dict[str, str]:
    """What the clouds' providers need; nothing of it reaches a sandbox."""
    settings = wiring.settings
    return {
        "HOLDFAST_GATEWAY_SECRET": wiring.credentials.gateway_secret.get_secret_value(),
        **_given("HOLDFAST_GATEWAY_URL", settings.gateway_url),
        **_given("HOLDFAST_STORE_URL", settings.store_url),
        **_given("HOLDFAST_CHECKPOINT_SECONDS", settings.checkpoint_seconds),
        **_given("HOLDFAST_CLOUD_LIFETIME", settings.cloud_lifetime),
        **_given("E2B_API_KEY", settings.e2b_api_key),
        **_given("E2B_API_URL", settings.e2b_api_url),
        **_given("E2B_SANDBOX_URL", settings.e2b_sandbox_url),
        **_given("HOLDFAST_E2B_TEMPLATE", settings.e2b_template),
        **_given("DAYTONA_API_KEY", settings.daytona_api_key),
        **_given("DAYTONA_API_URL", settings.daytona_api_url),
        **_given("DAYTONA_TARGET", settings.daytona_target),
        **_given("HOLDFAST_DAYTONA_SNAPSHOT", settings.daytona_snapshot),
        **_given("MODAL_TOKEN_ID", settings.modal_token_id),
        **_given("MODAL_TOKEN_SECRET", settings.modal_token_secret),
        **_given("MODAL_SERVER_URL", settings.modal_server_url),
        **_given("HOLDFAST_MODAL_APP", settings.modal_app),
        **_given("HOLDFAST_MODAL_IMAGE", settings.modal_image),
        **_given("HOLDFAST_MODAL_RUNTIME", settings.modal_runtime),
    }


def _openai_default(settings: Settings) -> str | None:
    """opencode and pi name a model in every request; the scripted model's name would be refused."""
    return DEFAULT_OPENAI_MODEL if settings.openai_api_key is not None else None


def _shared(wiring: Wiring) -> dict[str, str]:
    """What api and sidecar both get."""
    settings, credentials = wiring.settings, wiring.credentials
    return {
        "HOLDFAST_S3_ENDPOINT": settings.s3_proxy or seaweedfs.s3_endpoint(wiring.ports),
        "HOLDFAST_S3_ACCESS_KEY": credentials.s3_access_key.get_secret_value(),
        "HOLDFAST_S3_SECRET_KEY": credentials.s3_secret_key.get_secret_value(),
        "HOLDFAST_S3_BUCKET": settings.s3_bucket,
        "HOLDFAST_S3_STATE_BUCKET": seaweedfs.STATE_BUCKET,
        "HOLDFAST_DEFAULT_HARNESS": settings.default_harness,
        "HOLDFAST_DEFAULT_PROVIDER": settings.default_provider,
        "HOLDFAST_LOG_LEVEL": settings.log_level,
        "HOLDFAST_LOG_FORMAT": settings.log_format,
        **_given("HOLDFAST_SESSION_BYTES", settings.session_bytes),
        **_given("HOLDFAST_SESSION_FILES", settings.session_files),
    }


def _given(name: str, value: SecretStr | Path | str | float | None) -> dict[str, str]:
    """The variable, if it was set at all."""
    if value is None:
        return {}
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)}


def _module(name: str) -> tuple[str, ...]:
    # -P: the current directory is data, never a place to import from
    return (sys.executable, "-P", "-m", name)


def _python(*, network: bool = False) -> dict[str, str]:
    # By default glibc has an arena for each thread and keeps in each what it once needed.
    own = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "1"}
    return inherited_environment(network=network) | own


def stop_boxes(wiring: Wiring) -> Hook:
    """A hook that ends every sandbox and mount of this data directory."""
    env = _python(network=True) | _sidecar_environment(wiring)

    async def run() -> str:
        return await run_tool(
            "ending sandboxes and mounts",
            *_module("sidecar.stop_all"),
            env=env,
            cwd=wiring.layout.data,
            seconds=BOXES_SECONDS,
        )

    return run
