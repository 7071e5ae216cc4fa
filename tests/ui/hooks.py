"""The `data-test` attributes that tests find parts of the page by; api/static sets each of them.

An element's state is in further attributes, such as `data-state` or `data-tone`: texts and CSS
classes can change without a test noticing.
"""

from __future__ import annotations

from enum import StrEnum

from playwright.async_api import Locator, Page


class Hook(StrEnum):
    """A name is set in api/static under the same `data-test`; test_pure.py compares the two."""

    APP = "app"
    WELCOME = "welcome"
    SHOW_ME = "show-me"
    OFFLINE = "offline"
    TOASTS = "toasts"

    HOME = "home"
    LOGIN = "login"  # data-name, data-role
    NEW_SESSION = "new-session"
    SEARCH = "search"
    NOTHING_FOUND = "nothing-found"
    ALL_SESSIONS = "all-sessions"

    SESSION_TITLE = "session-title"
    PLACE = "place"  # data-provider, empty without a sandbox; data-egress
    LIVENESS = "liveness"  # data-state: offline, connecting, waiting, working, live
    SAFETY = "safety"  # data-tone
    USAGE = "usage"  # data-tone

    TRANSCRIPT = "transcript"  # data-items
    ROW = "transcript-row"  # data-seq
    LATEST = "latest"
    MESSAGE = "message"  # data-role
    MESSAGE_AGENT = "message-agent"  # data-harness, data-provider
    THOUGHT = "thought"
    STEP = "step"  # data-type of its event, data-provider, data-rung
    TOOL = "tool"  # data-state
    TOOL_INPUT = "tool-input"
    TOOL_OUTPUT = "tool-output"
    PERMISSION = "permission"
    PERMISSION_OPTION = "permission-option"  # data-kind
    PERMISSION_ANSWER = "permission-answer"  # data-allowed, data-by
    TURN_END = "turn-end"  # data-state
    RECEIPT = "receipt"  # data-tone, data-files
    CHANGES = "changes"

    COMPOSER = "composer"
    PROMPT = "prompt"
    QUEUE = "queue"

    SANDBOX = "sandbox"  # data-state: there, none
    SANDBOX_MEMORY = "sandbox-memory"
    SANDBOX_WARM_UNTIL = "sandbox-warm-until"
    KILL = "kill"
    DESTROY = "destroy"
    ALL_SANDBOXES = "all-sandboxes"
    LEAKS = "leaks"  # data-count

    FILES = "files"
    FILE_ROWS = "file-rows"  # data-count
    FILE_ROW = "file-row"  # data-kind, data-durable
    NO_FILES = "no-files"
    UPLOAD = "upload"
    PREVIEW_PATH = "preview-path"
    PREVIEW_SIZE = "preview-size"  # data-shown, data-total
    PREVIEW_MORE = "preview-more"
    HEX = "hex"

    NO_RUNS = "no-runs"
    RUN_MATRIX = "run-matrix"
    CELL = "cell"  # data-state
    CELL_DETAILS = "cell-details"  # data-harness, data-provider
    CELL_STEP = "cell-step"
    MATRIX_RUN = "matrix-run"  # data-passed, data-failed
    DEMO = "demo"  # data-state: playing, over
    DEMO_STEP = "demo-step"  # data-tone

    WIDE = "wide"  # may be wider than the page: it scrolls by itself


def selector(hook: Hook, **data: str) -> str:
    """For elements with this hook whose data attributes have these values."""
    return f'[data-test="{hook}"]' + "".join(f'[data-{name}="{data[name]}"]' for name in data)


def find(root: Page | Locator, hook: Hook, **data: str) -> Locator:
    return root.locator(selector(hook, **data))
