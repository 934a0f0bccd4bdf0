# `make demo` runs the main job, `make test` passes the tests. Each sets up all it needs, and repeats quickly.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test lint check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   runs two examples with a real worker"
	@echo "make test   runs the tests"
	@echo "make lint   runs the linters and the type checker"

demo: $(VENV)/ready
	@echo "== Running the demo"
	@$(BIN)/python examples/demo.py

test: $(VENV)/ready
	@echo "== Running the tests"
	@$(BIN)/python -m pytest

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
