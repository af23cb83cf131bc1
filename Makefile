# Two commands do everything: `make run` and `make test`. Each makes the environment in .venv first, when needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help install run ui review test test-slow lint format bench-resume

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses the interpreter of the environment (3.11 or newer)."

install: $(READY) ## Make the environment in .venv from pinned versions

run: $(READY) ## The whole lifecycle: prompts, SFT, GRPO, held-out evaluation, blind-review set
	@$(BIN)/grpo run

ui: $(READY) ## Dagster and MLflow in the browser (loopback only); Ctrl-C stops both
	@$(BIN)/grpo ui

review: $(READY) ## A page where people judge completions blind (loopback only); Ctrl-C ends it
	@$(BIN)/grpo review

test: $(READY) ## The tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY) ## The tests that train for minutes
	$(BIN)/python -m pytest -m slow

lint: $(READY) ## Style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-resume: $(READY) ## One training killed 20 times, and its outputs compared with those of one left alone
	$(BIN)/python bench/resume.py

format: $(READY) ## Sort imports and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed, $(PYTHON) is $$("$(PYTHON)" -V 2>&1); name another: make PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
