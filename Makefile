# One word each; CI runs the same words. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help setup demo test test-ops check fmt bench chaos clean
help:
	@echo "make demo      set up, fork five ways over two daemons against the simulator, show what was saved"
	@echo "make test      set up, then every check: lint, types, tests"
	@echo "make test-ops  the long ones: what fan-outs are billed, 500 forks, a cluster that loses its leader"
	@echo "make check     lint and types only"
	@echo "make fmt       format the code"
	@echo "make bench     measure what the README claims, beside the alternative"
	@echo "make chaos     the crash tests at length"

setup: $(STAMP)
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("nexofork needs Python 3.11 or newer; set PYTHON=…") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[embedded,dev]"
	@touch $@

demo: setup
	$(BIN)/nexofork demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy nexofork daemon/nexofork_daemon tests benchmarks

test: check
	$(BIN)/pytest --cov --cov-report=term:skip-covered

test-ops: setup
	$(BIN)/pytest -m ops --timeout 900

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

chaos: setup
	$(BIN)/pytest -m chaos --timeout 900

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
