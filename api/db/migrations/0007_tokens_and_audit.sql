-- Named tokens beside the stack's own. What they are is not here: hashes of 256 random bits, and of
-- the cookie that is made from them, so that a copy of this table lets nobody in.
CREATE TABLE tokens (
    name        text PRIMARY KEY,
    role        text NOT NULL CHECK (role IN ('read', 'run', 'admin')),
    token_hash  bytea NOT NULL UNIQUE,
    cookie_hash bytea NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    created_by  text NOT NULL
);

-- Who did what. It outlives sessions and tokens, so it refers to neither.
CREATE TABLE audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    name       text NOT NULL,
    role       text NOT NULL CHECK (role IN ('read', 'run', 'admin')),
    client     text NOT NULL,
    action     text NOT NULL,
    session_id uuid,
    subject    text NOT NULL,
    status     integer NOT NULL,
    request_id text NOT NULL
);

CREATE INDEX audit_by_session ON audit (session_id, id) WHERE session_id IS NOT NULL;
CREATE INDEX audit_by_time ON audit (at);

-- The name of the token that made a session.
ALTER TABLE sessions ADD COLUMN made_by text NOT NULL DEFAULT 'owner';
CREATE INDEX sessions_by_maker ON sessions (made_by);
