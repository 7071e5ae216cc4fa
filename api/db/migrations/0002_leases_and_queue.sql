-- Who carries a running turn, and until when; a turn that has ended has no row. The epoch that
-- fences the others out is `sessions.epoch`, on the row that every write of a turn locks anyway.
-- No index on what moves with each heartbeat, and room on the page: those updates stay heap-only.
CREATE TABLE leases (
    turn_id    uuid PRIMARY KEY REFERENCES turns (id),
    -- one api process; NULL when it was given up
    owner      uuid,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Turns of the version before: nobody carries them yet.
INSERT INTO leases (turn_id, expires_at) SELECT id, '-infinity' FROM turns WHERE state = 'running';

-- A queued turn has a position and no epoch: it gets that when it starts, so that epochs are the
-- order in which turns ran. Until then `first_seq` is the earliest that it can have.
ALTER TABLE turns
    ALTER COLUMN epoch DROP NOT NULL,
    ADD COLUMN position bigint,
    -- what was not proven to be in the store, and why
    ADD COLUMN not_durable json,
    DROP CONSTRAINT turns_state_check,
    DROP CONSTRAINT turns_check,
    ADD CONSTRAINT turns_state_check CHECK (
        state IN ('queued', 'running', 'completed', 'failed', 'cancelled', 'interrupted')
    ),
    ADD CONSTRAINT turns_ended_check CHECK (
        (state IN ('queued', 'running')) = (ended_at IS NULL)
    ),
    -- only what never ran has no epoch: what waits, and what was cancelled while it waited
    ADD CONSTRAINT turns_epoch_check CHECK (
        CASE WHEN epoch IS NULL THEN state IN ('queued', 'cancelled') ELSE state <> 'queued' END
    ),
    ADD CONSTRAINT turns_position_check CHECK (state <> 'queued' OR position IS NOT NULL);

CREATE UNIQUE INDEX turns_queued ON turns (session_id, position) WHERE state = 'queued';

-- A receipt says up to where the transcript is covered by it.
UPDATE turns t
SET receipt = (t.receipt::jsonb || jsonb_build_object('seq', e.seq))::json
FROM (
    SELECT turn_id, max(seq) AS seq FROM events WHERE type = 'receipt' GROUP BY turn_id
) e
WHERE e.turn_id = t.id AND t.receipt IS NOT NULL;

-- `gone` without an id: it was intended and never came to be.
ALTER TABLE sandboxes
    DROP CONSTRAINT sandboxes_check1,
    ADD CONSTRAINT sandboxes_id_check CHECK (
        provider_id IS NOT NULL OR state IN ('intent', 'gone')
    );

-- The ledger's open entries: few, while the closed ones are kept.
CREATE INDEX sandboxes_open ON sandboxes (session_id) WHERE state IN ('intent', 'live');
