-- fillfactor: `last_seq` moves with every batch of events; room on the page and no index on a
-- column that moves with it keep those updates heap-only, so they cost the same for ever.
CREATE TABLE sessions (
    id          uuid PRIMARY KEY,
    title       text NOT NULL,
    harness     text NOT NULL,
    provider    text NOT NULL,
    model       text,
    reasoning   text,
    permissions text NOT NULL CHECK (permissions IN ('ask', 'auto')),
    archived    boolean NOT NULL DEFAULT false,
    deleting    boolean NOT NULL DEFAULT false,
    epoch       bigint NOT NULL DEFAULT 0,
    last_seq    bigint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- moves when a turn starts or ends and when the session is edited, not with every event
    updated_at  timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE INDEX sessions_by_activity ON sessions (archived, updated_at DESC, id DESC);

CREATE TABLE turns (
    id               uuid PRIMARY KEY,
    session_id       uuid NOT NULL REFERENCES sessions (id),
    epoch            bigint NOT NULL,
    state            text NOT NULL
                     CHECK (state IN ('running', 'completed', 'failed', 'cancelled', 'interrupted')),
    -- a JSON string: `text` cannot hold U+0000
    prompt           json NOT NULL,
    harness          text NOT NULL,
    provider         text NOT NULL,
    model            text,
    reasoning        text,
    permissions      text NOT NULL CHECK (permissions IN ('ask', 'auto')),
    -- the sidecar took the run; from here on "I do not know it" means that it was lost
    accepted         boolean NOT NULL DEFAULT false,
    cancel_requested boolean NOT NULL DEFAULT false,
    first_seq        bigint NOT NULL,
    last_seq         bigint NOT NULL,
    -- number of the last stored line of the run's stream
    last_source      bigint NOT NULL DEFAULT 0,
    error            json,
    receipt          json,
    created_at       timestamptz NOT NULL DEFAULT now(),
    ended_at         timestamptz,
    UNIQUE (session_id, epoch),
    CHECK ((state = 'running') = (ended_at IS NULL))
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX turns_one_running ON turns (session_id) WHERE state = 'running';

-- No reference to sessions: the turn has one, and a second check for every event would cost
-- more than the insert.
CREATE TABLE events (
    session_id uuid NOT NULL,
    seq        bigint NOT NULL,
    turn_id    uuid NOT NULL REFERENCES turns (id),
    -- number of the line in the run's stream; NULL for what the api itself has to say
    source     bigint,
    at         timestamptz NOT NULL,
    type       text NOT NULL,
    -- length of `body`, so that a page can be cut by bytes without reading the bodies
    size       integer NOT NULL,
    -- json and not jsonb: kept verbatim, with \u0000 and lone surrogates as escapes
    body       json NOT NULL,
    PRIMARY KEY (session_id, seq),
    UNIQUE (turn_id, source)
);

CREATE TABLE sandboxes (
    id          uuid PRIMARY KEY,
    session_id  uuid NOT NULL REFERENCES sessions (id),
    turn_id     uuid NOT NULL REFERENCES turns (id),
    provider    text NOT NULL,
    key         text NOT NULL UNIQUE,
    provider_id text,
    state       text NOT NULL CHECK (state IN ('intent', 'live', 'gone', 'destroyed')),
    proof       json,
    created_at  timestamptz NOT NULL DEFAULT now(),
    ended_at    timestamptz,
    CHECK ((state IN ('intent', 'live')) = (ended_at IS NULL)),
    CHECK (state = 'intent' OR provider_id IS NOT NULL)
);

CREATE INDEX sandboxes_by_session ON sandboxes (session_id, provider);
