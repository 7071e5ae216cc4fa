-- Runs of the matrix that were started here.
CREATE TABLE matrix_runs (
    id         uuid PRIMARY KEY,
    state      text NOT NULL
               CHECK (state IN ('running', 'completed', 'failed', 'interrupted', 'cancelled')),
    harnesses  text[] NOT NULL,
    providers  text[] NOT NULL,
    engine     text NOT NULL,
    error      json,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- moves while its process is looked after
    beat_at    timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    CHECK ((state = 'running') = (ended_at IS NULL))
);

-- One at a time: they would make each other slow, and the timings worthless.
CREATE UNIQUE INDEX matrix_one_running ON matrix_runs ((true)) WHERE state = 'running';

CREATE TABLE matrix_cells (
    run_id     uuid NOT NULL REFERENCES matrix_runs (id),
    position   integer NOT NULL,
    harness    text NOT NULL,
    provider   text NOT NULL,
    state      text NOT NULL
               CHECK (state IN ('waiting', 'running', 'passed', 'failed', 'skipped')),
    step       text,
    -- seconds by name, in order
    steps      json NOT NULL DEFAULT '{}',
    -- a JSON string: it may quote what an agent printed
    reason     json NOT NULL DEFAULT '""',
    engine     text,
    session_id uuid,
    PRIMARY KEY (run_id, position),
    UNIQUE (run_id, harness, provider)
);
