# Everything a person or CI runs. Each target makes and uses .venv; nothing outside this folder is changed.
#
#   make          what there is
#   make demo     three daemons, one of them killed, one answer
#   make test     the whole suite; PYTEST_ADDOPTS='-k codec -x' narrows it
#   make lint     style, formatting, types, import contract
#
# PYTHON=/path/to/python chooses the interpreter; without it the first of PYTHONS that fits is taken.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP_FLAGS := --disable-pip-version-check --no-input

# 3.11 first: constraints.txt is tested on it.
PYTHONS := $(PYTHON) python3.11 python3 python3.12 python3.13 python3.14
FITS := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# A shell fragment that sets $$python to the first interpreter that fits, or says what is missing and stops.
find_python = python=; \
	for candidate in $(PYTHONS); do \
		if "$$candidate" -c '$(FITS)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "masos needs Python 3.11 or newer with its venv module; none of these has both: $(strip $(PYTHONS))" >&2; \
		echo "hint: on Debian or Ubuntu 'apt-get install python3 python3-venv python3-dev', or set PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi

# Printed when pip fails; a registry or disk error is shown above it by pip itself.
BUILD_HINT := hint: libp2p needs fastecdsa 2.3.2, which has no wheel and is compiled: C compiler, Python headers, GMP headers \
	(Debian: apt-get install gcc python3-dev libgmp-dev; macOS: brew install gmp)

.PHONY: help .venv demo test lint bench fix hooks constraints python clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z.]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv: $(STAMP) ## the environment, with the versions of constraints.txt

# Made anew when what it holds changes, so that it never keeps a package that is no longer asked for.
$(STAMP): pyproject.toml constraints.txt
	@$(find_python); \
	echo "making $(VENV) with $$("$$python" --version), a minute the first time"; \
	"$$python" -m venv --clear $(VENV); \
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt -e '.[dev]' || { echo "$(BUILD_HINT)" >&2; exit 1; }; \
	touch $@

demo: $(STAMP) ## three daemons answer one question while one of them is killed
	$(BIN)/masos demo

bench: $(STAMP) ## every figure beside its baseline
	$(BIN)/masos bench all

test: $(STAMP) ## the whole suite
	$(BIN)/pytest --no-header

lint: $(STAMP) ## style, formatting, types, import contract; changes nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(STAMP) ## what ruff can repair by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

hooks: $(STAMP) ## git hooks: lint on commit, quick tests on push
	$(BIN)/pre-commit install

constraints: ## newest versions that pyproject.toml allows, written to constraints.txt
	@$(find_python); \
	rm -rf build/constraints; \
	"$$python" -m venv build/constraints; \
	build/constraints/bin/python -m pip install -q $(PIP_FLAGS) -e '.[dev]' || { echo "$(BUILD_HINT)" >&2; exit 1; }; \
	{ \
		echo "# What the suite is tested with: every package of an environment with only '.[dev]', pip and masos left out."; \
		echo "# Made by 'make constraints' on $$("$$python" --version); edit pyproject.toml, not this file."; \
		build/constraints/bin/python -m pip freeze $(PIP_FLAGS) --all --exclude pip --exclude masos | grep '==' | LC_ALL=C sort -f; \
	} > build/constraints.txt; \
	rm -rf build/constraints; \
	mv build/constraints.txt constraints.txt

python: ## which interpreter the environment is made with
	@$(find_python); echo "$$python"

clean: ## everything that the targets above made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find $(wildcard dht gossip kernel node protocol simulations tests) -name __pycache__ -type d -prune -exec rm -rf {} +
