-- What a harness has asked for. The question itself (title, input, options) is the event `seq`.
CREATE TABLE permissions (
    session_id    uuid NOT NULL REFERENCES sessions (id),
    permission_id text NOT NULL,
    turn_id       uuid NOT NULL REFERENCES turns (id),
    seq           bigint NOT NULL,
    -- closed: the turn ended before anybody answered
    state         text NOT NULL CHECK (state IN ('pending', 'answered', 'closed')),
    asked_at      timestamptz NOT NULL DEFAULT now(),
    -- a JSON string: the harness chooses it, and `text` cannot hold U+0000
    option_id     json,
    answered_by   text,
    answered_at   timestamptz,
    -- the run has said that the harness has the answer
    delivered     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (session_id, permission_id),
    CHECK ((state = 'answered') = (answered_by IS NOT NULL)),
    CHECK ((state = 'answered') = (answered_at IS NOT NULL))
);

-- What is still to be done: few, while the rest is kept.
CREATE INDEX permissions_open ON permissions (turn_id)
WHERE state = 'pending' OR (state = 'answered' AND NOT delivered);
