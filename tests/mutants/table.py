"""The mutants: what is taken out of the source, what stands there instead, and who must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`before` is exactly once in `path`. Some test of `tests` must fail with `after` instead."""

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


WALKER = "tests/unit/boxhost/test_walker_links.py"
SETTLING = "tests/unit/runs/test_settling.py"
FREEZER = "tests/integration/boxhost/test_freezer.py"
BOXES = "tests/integration/boxhost/test_boxes.py"
NAMESPACES = f"{BOXES}::test_every_namespace_and_the_session_are_the_boxs_own"
CAPABILITIES = f"{BOXES}::test_nobody_between_the_keeper_and_the_box_has_or_regains_a_capability"
SEEN = (
    "tests/integration/api/test_receipts.py"
    "::test_a_receipt_with_much_behind_it_is_stored_at_once_and_seen_with_the_end"
)
LEASES = "tests/integration/api/test_leases.py"
AT_ITS_END = f"{LEASES}::test_a_lease_is_free_at_its_end_and_no_moment_before"
FOR_ADMINS = "tests/integration/api/test_auth.py::test_tokens_and_the_record_are_for_admins_alone"
METERING = "tests/unit/gateway/test_metering.py"
USED_UP = f"{METERING}::test_a_budget_that_is_used_up_to_the_last_is_spent"
MANIFEST = (
    "tests/integration/api/test_receipts.py::test_the_manifest_of_a_turn_is_served_as_it_is_stored"
)

MUTANTS = (
    Mutant(
        "a lease is taken five seconds early",
        "api/db/leases.py",
        'IS_FREE = "SELECT expires_at <= now() FROM',
        "IS_FREE = \"SELECT expires_at <= now() + interval '5 s' FROM",
        (AT_ITS_END,),
    ),
    Mutant(
        "a lease is said to be free five seconds early",
        "api/db/leases.py",
        "WHERE l.expires_at <= now() AND NOT",
        "WHERE l.expires_at <= now() + interval '5 s' AND NOT",
        (AT_ITS_END,),
    ),
    Mutant(
        "role run lists tokens",
        "api/roles.py",
        '("GET", "/tokens"): Rule("admin"),',
        '("GET", "/tokens"): Rule("run"),',
        (FOR_ADMINS,),
    ),
    Mutant(
        "role run makes tokens",
        "api/roles.py",
        '("POST", "/tokens"): Rule("admin", "token.create"),',
        '("POST", "/tokens"): Rule("run", "token.create"),',
        (FOR_ADMINS,),
    ),
    Mutant(
        "a budget of tokens is passed by one request",
        "sidecar/gateway/metering/request.py",
        "spent.tokens >= budget.tokens:",
        "spent.tokens > budget.tokens:",
        (USED_UP,),
    ),
    Mutant(
        "a budget of dollars is passed by one request",
        "sidecar/gateway/metering/request.py",
        "if spent.cost >= budget.cost:",
        "if spent.cost > budget.cost:",
        (USED_UP,),
    ),
    Mutant(
        "a deleted session keeps its manifests",
        "api/sessions.py",
        "await self._stores.state.delete_tree(str(session_id))",
        "0",
        (MANIFEST,),
    ),
    Mutant(
        "fill writes outside the workspace",
        "sidecar/boxhost/walker.py",
        'if not all(steps) or set(steps) & {".", ".."}:',
        "if not all(steps):",
        (WALKER,),
    ),
    Mutant(
        "fill follows a link at the last step",
        "sidecar/boxhost/walker.py",
        "flags = os.O_WRONLY | os.O_NOFOLLOW",
        "flags = os.O_WRONLY",
        (WALKER,),
    ),
    Mutant(
        "fill gives away what a link leads to",
        "sidecar/boxhost/walker.py",
        "os.chown(step, uid, uid, dir_fd=fd, follow_symlinks=False)",
        "os.chown(step, uid, uid, dir_fd=fd)",
        (WALKER,),
    ),
    Mutant(
        "an epoch is granted twice",
        "sidecar/runs/engine.py",
        "if journal.request.epoch >= request.epoch:",
        "if journal.request.epoch > request.epoch:",
        ("tests/unit/runs/test_starting.py",),
    ),
    Mutant(
        "a superseded turn is not told to stop",
        "sidecar/runs/engine.py",
        "                self._turns[turn_id].cancel()\n",
        "                pass\n",
        ("tests/unit/runs/test_starting.py",),
    ),
    Mutant(
        "a turn that was cut off counts as known to its harness",
        "sidecar/runs/turn.py",
        "        return self._progress.known_epoch\n",
        "        return self._request.epoch\n",
        (SETTLING,),
    ),
    Mutant(
        "a second receipt after a crash between receipt and end",
        "sidecar/runs/turn.py",
        'if self._journal.has("receipt"):',
        "if False:",
        (SETTLING,),
    ),
    Mutant(
        "a link leads the sidecar to any socket of the host",
        "sidecar/providers/boxd.py",
        "os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC",
        "os.O_PATH | os.O_CLOEXEC",
        ("tests/unit/hostile/test_box_socket.py",),
    ),
    Mutant(
        "a revoked key is not tried",
        "sidecar/workspace/iam.py",
        "if answer.status != REFUSED:",
        "if answer.status >= 500:",
        ("tests/unit/workspace/test_revoking.py",),
    ),
    Mutant(
        "an older epoch overwrites a newer one's manifest",
        "sidecar/workspace/manifest.py",
        '                _refuse_stale(manifest, stored["epoch"])\n',
        "",
        (
            "tests/integration/workspace/test_manifest.py"
            "::test_an_older_epoch_does_not_overwrite_the_document_of_a_newer_one",
        ),
    ),
    Mutant(
        "a backup's hold is not renewed",
        "api/db/holds.py",
        'RENEW = "UPDATE holds SET expires_at = now() + $2 WHERE owner = $1"',
        'RENEW = "UPDATE holds SET owner = $1 WHERE owner = $1 AND $2::interval IS NOT NULL"',
        (
            "tests/integration/api/test_holds.py"
            "::test_a_hold_is_renewed_for_as_long_as_a_copy_takes",
        ),
    ),
    Mutant(
        "changes are told against a turn without a receipt",
        "api/db/turns.py",
        "AND b.ended_at IS NOT NULL AND b.receipt IS NOT NULL",
        "AND b.ended_at IS NOT NULL",
        (
            "tests/integration/api/test_edits.py"
            "::test_a_turn_without_a_receipt_is_no_base_of_changes",
        ),
    ),
    Mutant(
        "a receipt is shown before the turn's end",
        "api/db/turns.py",
        "       CASE WHEN ended_at IS NOT NULL THEN receipt END AS receipt,\n"
        "       CASE WHEN ended_at IS NOT NULL THEN not_durable END AS not_durable\n"
        "FROM turns WHERE session_id = $1 AND id = $2\n",
        "       receipt, not_durable\nFROM turns WHERE session_id = $1 AND id = $2\n",
        (SEEN,),
    ),
    Mutant(
        "a receipt is listed before the turn's end",
        "api/db/turns.py",
        "       CASE WHEN ended_at IS NOT NULL THEN receipt END AS receipt,\n"
        "       CASE WHEN ended_at IS NOT NULL THEN not_durable END AS not_durable\n"
        "FROM turns\n",
        "       receipt, not_durable\nFROM turns\n",
        (SEEN,),
    ),
    Mutant(
        "an answer to a permission stays undelivered",
        "api/db/permissions.py",
        "SET state = 'answered', delivered = true, option_id = $3,",
        "SET state = 'answered', option_id = $3,",
        (
            "tests/integration/api/test_permissions.py"
            "::test_an_answer_that_the_run_has_confirmed_is_not_delivered_by_the_next_api",
        ),
    ),
    Mutant(
        "what a turn may reach is not checked after the look-up",
        "sidecar/gateway/egress/proxy.py",
        "        self._check(target)  # once more: a turn may have begun meanwhile\n",
        "",
        ("tests/unit/egress/test_limits.py",),
    ),
    Mutant(
        "all sessions together have no limit of tunnels",
        "sidecar/gateway/egress/proxy.py",
        " or self._way.open >= self._rules.total:",
        ":",
        ("tests/unit/egress/test_limits.py",),
    ),
    Mutant(
        "the machine's search domains are tried",
        "sidecar/gateway/egress/addresses.py",
        'self._threads, _lookup, f"{name}.")',
        "self._threads, _lookup, name)",
        ("tests/unit/egress/test_addresses.py",),
    ),
    Mutant(
        "a model API's header carries the key into the sandbox",
        "sidecar/gateway/upstream.py",
        'if secret.encode("latin-1", "replace") not in pair[1]',
        "if pair",
        ("tests/unit/gateway/test_upstream.py",),
    ),
    Mutant(
        "what was flushed while the store was listed is not looked at again",
        "sidecar/workspace/barrier.py",
        '            await self._look_again(stored, [*seen["read"], *seen["gone"]])\n',
        "",
        (
            "tests/integration/workspace/test_barrier.py"
            "::test_what_is_flushed_while_the_store_is_listed_needs_no_second_look",
        ),
    ),
    Mutant(
        "a box has the session of its keeper",
        "sidecar/boxhost/boxes.py",
        '"--die-with-parent", "--new-session"',
        '"--die-with-parent"',
        (NAMESPACES,),
    ),
    Mutant(
        "a box has the host's cgroup namespace",
        "sidecar/boxhost/boxes.py",
        '"--unshare-cgroup-try", ',
        "",
        (NAMESPACES,),
    ),
    Mutant(
        "a command in a box has the host's cgroup namespace",
        "sidecar/boxhost/enter.py",
        'kinds.append("cgroup")',
        "pass",
        (NAMESPACES,),
    ),
    Mutant(
        "a box shares memory and queues with the host",
        "sidecar/boxhost/boxes.py",
        ', "--unshare-ipc"',
        "",
        (NAMESPACES,),
    ),
    Mutant(
        "a box has the host's name",
        "sidecar/boxhost/boxes.py",
        '"--unshare-uts", "--unshare-net", "--unshare-cgroup-try", "--hostname", "sandbox"',
        '"--unshare-net", "--unshare-cgroup-try"',
        (NAMESPACES,),
    ),
    Mutant(
        "bubblewrap may regain the host's capabilities",
        "sidecar/boxhost/keeper.py",
        'command += ["--no-new-privs", "--bounding-set=-all"]',
        'command += ["--no-new-privs"]',
        (CAPABILITIES,),
    ),
    Mutant(
        "a box counts as frozen although a process was born",
        "sidecar/boxhost/freezer.py",
        "if await births.last_pid() == last:",
        "if await births.last_pid():",
        (f"{FREEZER}::test_a_freeze_that_cannot_be_proven_fails",),
    ),
)
