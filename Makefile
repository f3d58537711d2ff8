# Each target sets itself up in .venv; Python 3.11 or later and make are all it takes.

PYTHON ?= python3
JOBS ?= 3
ARGS ?=

# Tests, benchmarks and the demo start many processes: without this, where it is set, each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet --constraint constraints.txt

# What stands ready is recorded in stamps: the package with its own needs, then the tools on top.
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help demo test coverage check format bench torture clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUNTIME) ## see duplicates being absorbed
	@$(BIN)/onejob demo $(ARGS)

test: $(DEV) ## run the tests (ARGS="-k window" to choose, JOBS=4 for more at once)
	@$(BIN)/pytest -n $(JOBS) --dist worksteal $(ARGS)

coverage: $(DEV) ## write docs/COVERAGE.md: which accepted behaviour was seen on which store
	@$(BIN)/pytest -n $(JOBS) --dist worksteal --quiet -m "accepts and not torture" --coverage-page=docs/COVERAGE.md $(ARGS)

check: $(DEV) ## check format, lint, types and the direction of imports
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

format: $(DEV) ## format the code and fix what can be fixed safely
	@$(BIN)/ruff check --fix --exit-zero --quiet
	@$(BIN)/ruff format

bench: $(DEV) ## measure, beside the bare engines and the peers (ARGS="--ours": ourselves, in three minutes)
	@$(BIN)/python -m bench $(ARGS)

torture: $(DEV) ## run the long tests: real processes, real signals
	@$(BIN)/pytest -m torture --timeout 3600 $(ARGS)

clean: ## remove everything that make, tests and builds leave behind
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@rm -rf bench/.venvs bench/.scratch bench/results/latest*
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The build backend is installed first, so that its version is pinned too.
$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "onejob needs Python 3.11 or later, and '$(PYTHON)' answers \"$$($(PYTHON) --version 2>&1 | head -n 1)\"." \
			"Name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(DEV): $(RUNTIME)
	@echo "Adding the development tools ..."
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
