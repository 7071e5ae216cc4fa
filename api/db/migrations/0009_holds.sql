-- Sessions that start no turn for now, because a backup copies them. A hold that is not renewed ends
-- by itself: who held it has died.
CREATE TABLE holds (
    session_id uuid PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    owner      uuid NOT NULL,
    expires_at timestamptz NOT NULL
);
