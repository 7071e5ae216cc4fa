# `make help` lists what there is. Everything runs from .venv, which `make setup` makes.

.DEFAULT_GOAL := help
.NOTPARALLEL:

BIN := .venv/bin

# uv may be installed outside PATH; looked up anew at each use, because `setup` may install it.
UV = $(firstword $(shell command -v uv) $(wildcard $(HOME)/.local/bin/uv $(HOME)/.cargo/bin/uv .venv-uv/bin/uv))

COMMA := ,

# Files of tests that run at a time: a test waits about half of its time.
WORKERS ?= 2
UV_PIN := 'uv>=0.8,<1'

# The wheel with Node and npm, only where PATH has no Node >= 20 with npm.
NODE_GROUP = $(shell command -v npm >/dev/null 2>&1 \
	&& node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' >/dev/null 2>&1 \
	|| echo --group node)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Bytecode is made once, when something is installed: programs whose environment forbids them to
# write it (PYTHONDONTWRITEBYTECODE) would else compile all that they import, each time. To look for
# what is missing takes longer than all the rest, hence the check.
.PHONY: setup
setup: uv ## Install the pinned Python packages (PostgreSQL, SeaweedFS and bubblewrap among them)
	@sync='$(UV) sync --locked --quiet $(NODE_GROUP)'; \
		$$sync --check 2>/dev/null || $$sync --compile-bytecode

# Into a directory of its own: it changes nothing on the machine, and works where the system's
# Python is managed by the distribution, also without its package python3-venv.
.PHONY: uv
uv:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Holdfast needs Python 3.11 or newer as python3" >&2; exit 1; }
	@test -n "$(UV)" || { echo "installing uv"; rm -rf .venv-uv; \
		{ python3 -m venv .venv-uv 2>/dev/null && .venv-uv/bin/python -m pip install --quiet $(UV_PIN); } \
		|| { rm -rf .venv-uv; python3 -m pip install --quiet --target .venv-uv $(UV_PIN); } \
		|| { echo "uv could not be installed; do it as https://docs.astral.sh/uv says" >&2; exit 1; }; \
		echo '*' > .venv-uv/.gitignore; }

.PHONY: install
install: setup ## Install the harnesses into the cache of this user
	@$(BIN)/holdfast install

.PHONY: up
up: setup ## Start everything in the foreground; Ctrl-C stops it
	@$(BIN)/holdfast up

.PHONY: up-detached
up-detached: setup ## Start everything in the background
	@$(BIN)/holdfast up --detach

.PHONY: down
down: setup ## Stop everything; the data stays
	@$(BIN)/holdfast down

.PHONY: status
status: setup ## Show the parts of the stack
	@$(BIN)/holdfast status || true

.PHONY: logs
logs: setup ## Follow the logs
	@$(BIN)/holdfast logs --follow

.PHONY: doctor
doctor: setup ## Check this machine
	@$(BIN)/holdfast doctor

.PHONY: clean-data
clean-data: setup ## Remove all data of this stack (asks first)
	@$(BIN)/holdfast clean-data

.PHONY: check
check: setup ## Lint and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.PHONY: test
test: setup check install chromium ## Everything that CI runs; PYTEST_ARGS adds to pytest's arguments
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-fast
test-fast: setup ## The tests that start no process: the fast tier
	$(BIN)/pytest tests/unit --numprocesses 3 --dist loadgroup $(PYTEST_ARGS)

.PHONY: test-changed
test-changed: setup install chromium ## The tests that a change since BASE (HEAD) can affect
	@affected=$$($(BIN)/python -m tests.support.changed $(or $(BASE),HEAD)); \
	if [ -z "$$affected" ]; then echo "no test is affected"; else \
		set -x; $(BIN)/pytest $$affected --numprocesses $(WORKERS) --dist loadgroup $(PYTEST_ARGS); fi

.PHONY: test-ui
test-ui: setup install chromium ## The page in a real Chromium; PYTEST_ARGS adds to pytest's arguments
	$(BIN)/pytest tests/ui $(PYTEST_ARGS)

.PHONY: freezes
freezes: setup ## Freeze chains of forks on every provider; FREEZES=100 times each
	HOLDFAST_FREEZES=$(or $(FREEZES),100) $(BIN)/pytest tests/integration/conformance/test_fork_chains.py \
		--numprocesses 0 --timeout 3600 --log-cli-level INFO $(PYTEST_ARGS)

# All of them are part of `make test` too, with fewer examples for schemathesis.
SECURITY_TESTS = $(wildcard tests/e2e/security tests/*/hostile tests/*/egress tests/unit/sidecar/test_between_services.py \
	tests/integration/api/test_auth.py tests/integration/api/test_login.py tests/integration/api/test_origins.py \
	tests/integration/api/test_audit.py \
	tests/e2e/test_isolation.py tests/e2e/test_two_sessions.py)

.PHONY: security
security: setup install ## What is tried against the stack: schemathesis, hostile input, isolation, ruff's S, pip-audit
	$(BIN)/ruff check
	FUZZ_EXAMPLES=$(or $(EXAMPLES),25) $(BIN)/pytest $(SECURITY_TESTS) $(PYTEST_ARGS)
	@$(BIN)/python -m scripts.audit $(UV)

# Debian's, where this is root; elsewhere the tests skip and say so.
.PHONY: chromium
chromium:
	@scripts/install-chromium

.PHONY: screenshots
screenshots: setup install chromium ## Take docs/screenshots anew, from a stack of their own
	@$(BIN)/python -m scripts.screenshots

.PHONY: matrix
matrix: setup ## Every harness on every provider, on the running stack; ARGS="--providers local"
	@$(BIN)/python matrix_test.py $(ARGS)

.PHONY: images
images: ## Build the images of docker-compose.yml, the sandbox's among them
	docker compose --profile emulated build

.PHONY: compose-up
compose-up: ## Start everything as containers, and say where it is
	docker compose up --build --detach --wait
	@scripts/compose-login

.PHONY: compose-up-emulated
compose-up-emulated: ## The same with emulated clouds, to try them: root on the host, docs/clouds.md
	COMPOSE_ENV_FILES=$(if $(wildcard .env),.env$(COMMA))docker/emulated.env docker compose up --build --detach --wait
	@scripts/compose-login

.PHONY: compose-down
compose-down: ## Stop the containers and end their sandboxes; the data stays
	@scripts/compose-down

.PHONY: matrix-compose
matrix-compose: setup ## Containers up, the matrix on local and docker, containers down; ARGS="--emulated --harnesses pi"
	@scripts/matrix-compose $(ARGS)

.PHONY: matrix-emulated
matrix-emulated: setup install images ## Every harness on every provider, the clouds emulated; ARGS="--workspace checkpoint"
	@scripts/matrix-emulated $(or $(ARGS),--workspace checkpoint --cross --require local,docker,e2b,modal,daytona)

.PHONY: chaos
chaos: setup install ## Kill everything at random, ROUNDS=200 times, and look for what was lost; then try EXAMPLES=100 of each model; SEED=, ENGINE=checkpoint|geesefs
	@$(BIN)/python -m tests.chaos --rounds $(or $(ROUNDS),200) $(if $(SEED),--seed $(SEED)) --engine $(or $(ENGINE),weed)
	HYPOTHESIS_PROFILE=long HYPOTHESIS_EXAMPLES=$(or $(EXAMPLES),100) $(BIN)/pytest tests/integration/models -n0 $(PYTEST_ARGS)

# Nightly: each of them takes a run of the tests that must notice it.
.PHONY: mutants
mutants: setup ## Put known faults into a copy of the tree; each must be caught. ARGS="egress" for some
	@$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: bench
bench: setup ## All benchmarks
	@set -e; for script in $$(grep -l __main__ bench/*.py); do echo "== $$script"; $(BIN)/python $$script; done
