# `make demo` runs the main job, `make test` passes the tests. Each sets up all it needs, and repeats quickly.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo soak bench test test-thorough test-server test-web machines depth lint check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   runs four examples with real workers"
	@echo "make test   runs the tests (JOBS=1: one after the other; TESTS=tests/unit: some of them; SLOW=1: more variants)"
	@echo "make test-thorough  runs the tests that show at length what others show in short: depths, kills, upgrades"
	@echo "make test-server  runs the tests on a Firebird server, which it fetches, starts and stops (TESTS=...), and those of Celery"
	@echo "make test-web  passes the tests of the dashboard in Chromium (WRITE=1: makes the pictures in docs anew)"
	@echo "make machines  varies what machines vary: time zones, namespaces, signals, users, character sets (all variants)"
	@echo "make depth  counts what operations cost with a thousand and with a million waiting, into docs/benchmarks/depth.md"
	@echo "make soak   harms running workers at random and accounts for every task (SECONDS=60 SEED=...)"
	@echo "make bench  measures fbtasks beside other systems, into docs/benchmarks (QUICK=1: a small run, into .bench)"
	@echo "            URL=firebird://...: fbtasks alone, in that database, into .bench"
	@echo "make lint   runs the linters and the type checker"

demo: $(VENV)/ready
	@echo "== Running the demo"
	@$(BIN)/python examples/demo.py

# Tests wait as long as they compute: five to two processors, each process with folders and databases of its own.
JOBS ?= $(shell n=$$(($$(nproc 2>/dev/null || echo 2) * 5 / 2)); echo $$((n < 12 ? n : 12)))
TESTS ?=
SLOW ?=
test: $(VENV)/ready
	@echo "== Running the tests ($(JOBS) side by side)"
	@FBTASKS_SLOW=$(SLOW) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

test-thorough: $(VENV)/ready
	@echo "== Running the thorough tests ($(JOBS) side by side)"
	@FBTASKS_THOROUGH=1 FBTASKS_SLOW=$(SLOW) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m thorough $(TESTS)

test-server: $(VENV)/server-ready
	@echo "== Running the tests on a Firebird server ($(JOBS) side by side)"
	@PYTHON=$(BIN)/python FBTASKS_THOROUGH=1 FBTASKS_SLOW=$(SLOW) tools/server.sh run $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)
ifeq ($(TESTS),)
	@echo "== Running the tests that ship with kombu and Celery"
	@PYTHON=$(BIN)/python tools/server.sh run sh -ec '\
		$(BIN)/python tools/conformance.py kombu --url "$$FBTASKS_TEST_URL.kombu"; \
		$(BIN)/python tools/conformance.py celery --short --url "$$FBTASKS_TEST_URL.celery"'
endif

WRITE ?= $(FBTASKS_WRITE)
WEB_JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
test-web: $(VENV)/web-ready
	@echo "== Running the tests of the dashboard in Chromium ($(WEB_JOBS) side by side)"
	@FBTASKS_WRITE=$(WRITE) $(BIN)/python -m pytest -n $(WEB_JOBS) --dist loadfile $(or $(TESTS),tests/web)

# The cheap variants are part of `make test`.
machines: $(VENV)/ready
	@FBTASKS_SLOW=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/machines

DEPTH ?= 1000000
depth: $(VENV)/ready
	@rm -rf .depth
	@FBTASKS_SLOW=1 FBTASKS_DEPTHS=1000,$(DEPTH),2000,30 FBTASKS_DEPTHS_INTO=.depth $(BIN)/python -m pytest -n $(JOBS) --timeout 7200 tests/depth; \
		status=$$?; PYTHONPATH=tests $(BIN)/python -m depth.page .depth docs/benchmarks/depth.md; exit $$status

SECONDS ?= 60
SEED ?=
KINDS ?=
soak: $(VENV)/ready
	@PYTHONPATH=tests $(BIN)/python -m soak.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(KINDS),--kinds $(KINDS))

URL ?=
QUICK ?=
LARGE ?=
ROUNDS ?=
ONLY ?=
BENCH_VENV := .venv-bench
# Figures of a small run, or of another database, do not replace those in docs.
bench: $(VENV)/ready $(if $(URL),,$(BENCH_VENV)/ready)
	@$(BIN)/python -m benchmarks.run $(if $(URL),--url '$(URL)',--venv $(BENCH_VENV)) \
		--into $(if $(URL)$(QUICK)$(ONLY),.bench,docs/benchmarks) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(QUICK),--quick) $(if $(LARGE),--large) $(if $(ONLY),--only '$(ONLY)')

$(BENCH_VENV)/ready: benchmarks/requirements.txt tools/bench-setup.sh
	@PYTHON=$(PYTHON) BENCH_VENV=$(BENCH_VENV) SUDO="$(SUDO)" sh tools/bench-setup.sh benchmarks/requirements.txt
	@touch $@

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test lint

$(VENV)/ready: pyproject.toml
	@PYTHON=$(PYTHON) VENV=$(VENV) SUDO="$(SUDO)" sh tools/setup.sh
	@touch $@

$(VENV)/server-ready: $(VENV)/ready
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test-server]'
	@touch $@

$(VENV)/web-ready: $(VENV)/ready tools/web-setup.sh
	@VENV=$(VENV) SUDO="$(SUDO)" sh tools/web-setup.sh
	@touch $@

clean:
	@tools/server.sh stop
	rm -rf $(VENV) $(BENCH_VENV) .demo .bench .depth .server .suites
