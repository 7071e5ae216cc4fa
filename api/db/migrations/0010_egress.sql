-- What a session's sandboxes may reach through the gateway's proxy, and what a turn could.
ALTER TABLE sessions
    ADD COLUMN egress text NOT NULL DEFAULT 'off' CHECK (egress IN ('off', 'allow', 'open')),
    ADD COLUMN egress_hosts text[] NOT NULL DEFAULT '{}';
ALTER TABLE turns
    ADD COLUMN egress text NOT NULL DEFAULT 'off' CHECK (egress IN ('off', 'allow', 'open')),
    ADD COLUMN egress_hosts text[] NOT NULL DEFAULT '{}';
