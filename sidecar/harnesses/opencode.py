"""opencode, which speaks ACP itself."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.harnesses.acp import AcpConnection
from sidecar.harnesses.base import SCRIPTED_MODEL, Choice
from sidecar.harnesses.state import INTERRUPTED, StateBroken, StatePaths

DATA = ".local/share/opencode"
DATABASE = f"{DATA}/opencode.db"
CONFIG = ".config/opencode"
# opencode installs the package that plugins are written with into its config directory, unless a
# lock names it: ten seconds of CPU in every new HOME, and calls to npm that a sandbox may not make.
PLUGINS = {"dependencies": {"@opencode-ai/plugin": "*"}}
INSTALLED = {
    f"{CONFIG}/package-lock.json": json.dumps({"packages": {"": PLUGINS}}),
    f"{CONFIG}/node_modules/.package-lock.json": "{}",
}
DANGLING = """
SELECT id, data FROM part
WHERE json_extract(data, '$.type') = 'tool'
  AND json_extract(data, '$.state.status') IN ('pending', 'running')
"""
CLOSE = "UPDATE part SET data = ? WHERE id = ?"
MEND_SECONDS = 20
STEPS_AT_ONCE = 100_000


class Opencode:
    name = "opencode"
    title = "opencode"
    family = "openai"
    efforts = ("low", "medium", "high")
    can_ask = True
    reload_after_cancel = False
    programs: tuple[str, ...] = ("opencode",)
    titles: tuple[str, ...] = ()
    state = StatePaths(
        kept=(DATA,),
        left=tuple(
            f"{DATA}/{name}"
            for name in ("auth.json", "bin", "log", "repos", "snapshot", "opencode.db-shm")
        ),
    )

    def __init__(self, mend_seconds: float = MEND_SECONDS) -> None:
        self._mend_seconds = mend_seconds

    def mend(self, files: dict[str, bytes]) -> list[str]:
        """SQLite cuts a torn end off by itself; what is left are tools that never returned."""
        if DATABASE not in files:
            return []
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "opencode.db"
            path.write_bytes(files[DATABASE])
            if f"{DATABASE}-wal" in files:
                path.with_name("opencode.db-wal").write_bytes(files[f"{DATABASE}-wal"])
            try:
                closed = _close_dangling(path, self._mend_seconds)
            except sqlite3.Error as error:
                raise StateBroken(f"opencode's database: {error}") from error
            if not closed:
                return []
            files[DATABASE] = path.read_bytes()
            # Emptied, not left out: an old one beside the database would undo what was mended.
            files[f"{DATABASE}-wal"] = b""
        return [f"closed {closed} tool calls that never returned"]

    def home(self, gateway: str, choice: Choice) -> Mapping[str, str]:
        model = choice.model or SCRIPTED_MODEL
        permission = "ask" if choice.permissions == "ask" else "allow"
        config = {
            "$schema": "https://opencode.ai/config.json",
            "provider": {
                "gateway": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "gateway",
                    "options": {"baseURL": f"{gateway}/v1", "apiKey": "{env:GATEWAY_TOKEN}"},
                    "models": {
                        model: {
                            "name": model,
                            "reasoning": True,
                            "variants": {
                                effort: {"reasoningEffort": effort} for effort in self.efforts
                            },
                            "limit": {"context": 200_000, "output": 32_000},
                        }
                    },
                }
            },
            "model": f"gateway/{model}",
            "small_model": f"gateway/{model}",
            "enabled_providers": ["gateway"],
            "autoupdate": False,
            "share": "disabled",
            "permission": {
                "edit": permission,
                "bash": permission,
                "webfetch": permission,
                # `/workspace` is another name of the directory it works in.
                "external_directory": "allow",
            },
        }
        return {f"{CONFIG}/opencode.json": json.dumps(config), **INSTALLED}

    def env(self, gateway: str, token: str) -> Mapping[str, str]:
        return {
            "GATEWAY_TOKEN": token,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }

    async def configure(
        self, acp: AcpConnection, opened: Mapping[str, Any], choice: Choice
    ) -> None:
        if choice.reasoning is not None:  # its own default is the lowest
            await acp.set_option("effort", choice.reasoning)


def _close_dangling(path: Path, within: float) -> int:
    """The database comes out of a sandbox: nothing in its schema is trusted."""
    deadline = time.monotonic() + within  # a table may be a view that never ends
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA trusted_schema = OFF")
        database.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_AT_ONCE)
        found = database.execute("PRAGMA quick_check").fetchone()[0]
        if found != "ok":
            raise StateBroken(f"opencode's database: {found}")
        dangling = database.execute(DANGLING).fetchall()
        for part_id, data in dangling:
            part = json.loads(data)
            part["state"] = {
                "status": "error",
                "input": part["state"].get("input") or {},
                "error": INTERRUPTED,
                "time": {"start": 0, "end": 0, **(part["state"].get("time") or {})},
            }
            database.execute(CLOSE, (json.dumps(part), part_id))
        if dangling:
            database.commit()
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return len(dangling)
