-- How a workspace is kept: mounted, or copied from the sandbox's own disk.
ALTER TABLE sessions
    ADD COLUMN durability text NOT NULL DEFAULT 'mount' CHECK (durability IN ('mount', 'checkpoint'));
ALTER TABLE turns
    ADD COLUMN durability text NOT NULL DEFAULT 'mount' CHECK (durability IN ('mount', 'checkpoint'));
