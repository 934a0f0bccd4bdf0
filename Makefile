# `make demo` runs the main job, `make test` passes the tests. Each sets up all it needs, and repeats quickly.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo soak test lint check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   runs two examples with a real worker"
	@echo "make test   runs the tests"
	@echo "make soak   harms running workers at random and accounts for every task (SECONDS=60 SEED=...)"
	@echo "make lint   runs the linters and the type checker"

demo: $(VENV)/ready
	@echo "== Running the demo"
	@$(BIN)/python examples/demo.py

test: $(VENV)/ready
	@echo "== Running the tests"
	@$(BIN)/python -m pytest

SECONDS ?= 60
SEED ?=
soak: $(VENV)/ready
	@PYTHONPATH=tests $(BIN)/python -m soak.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test lint

$(VENV)/ready: pyproject.toml
	@PYTHON=$(PYTHON) VENV=$(VENV) SUDO="$(SUDO)" sh tools/setup.sh
	@touch $@

clean:
	rm -rf $(VENV) .demo
