-- What models were used, as the gateway counted it: kept as it comes, so that nothing need be summed.
-- `used_cost` is of the requests that have a price; `used_unpriced` counts those that have none.
ALTER TABLE sessions
    ADD COLUMN budget_tokens  bigint CHECK (budget_tokens > 0),
    ADD COLUMN budget_cost    double precision CHECK (budget_cost > 0),
    ADD COLUMN used_requests  bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_input     bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_output    bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_cached    bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_cost      double precision,
    ADD COLUMN used_unpriced  bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_estimated bigint NOT NULL DEFAULT 0;
ALTER TABLE turns
    ADD COLUMN used_requests  bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_input     bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_output    bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_cached    bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_cost      double precision,
    ADD COLUMN used_unpriced  bigint NOT NULL DEFAULT 0,
    ADD COLUMN used_estimated bigint NOT NULL DEFAULT 0;
