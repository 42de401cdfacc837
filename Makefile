# make          says what there is to make
# make train    makes .venv with what a user needs, and trains CartPole in front of your eyes
# make setup    makes .venv with everything that tests, checks and benchmarks need
# make test     runs the tests a change needs first     PYTEST_ARGS='tests/unit -x' chooses
# make test-all runs all tests: those of clusters, of faults and the slow ones too
# make gpu      runs the tests of what only a GPU does, on a machine that has one
# make without-applications  runs checks and unit tests in trees without path finding or the games
# make check    format, lint, types, layers
# make format   mends what can be mended: format and lint
# make bench    runs every benchmark, with peers     BENCH='replay learn' chooses
# make study    returns of one, two and eight actors at equal env steps; of runs that share; of games; of clients
# make shelf    the table of algorithms and tasks, beside SB3 with its zoo's settings (hours on 2 cores)
# make learning  what every algorithm learns in two minutes with nothing but its defaults
# make proof    compares the weights with those of another commit     PROOF_ARGS='--cases dqn,ppo' chooses
# make misuse   runs commands, environments, signals and damaged folders that must be refused     MISUSE_ARGS='--only settings' chooses
# make soak     private memory of a run with eight actors over ten minutes
# make clean    removes build products and caches; .venv and runs stay

PYTHON ?= python3
SCENARIO ?= cartpole
BENCH ?= replay collect learn async weights train checkpoint start share pathfinding selfplay server
PYTEST_ARGS ?=
PROOF_ARGS ?=
MISUSE_ARGS ?=
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PINS := constraints.txt
# As variables the pins hold for the build backend too: older pips read the first, newer the second.
INSTALL := PIP_CONSTRAINT=$(PINS) PIP_BUILD_CONSTRAINT=$(PINS) \
	$(BIN)/python -m pip install --disable-pip-version-check

# Stamps: what has been installed stays until the files that decide about it change.
VENV_MADE := $(VENV)/.made
USER_READY := $(VENV)/.user
DEV_READY := $(VENV)/.dev

.PHONY: help train setup test test-all gpu check format bench study shelf learning proof soak clean
.NOTPARALLEL: # two pips in one .venv tread on each other
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile

train: $(USER_READY)
	$(BIN)/rookery train $(SCENARIO)

setup: $(DEV_READY)

# Whole runs look at what is in /dev/shm: beside others each test process has one of its own. Where
# that cannot be, they come after the rest and nothing runs beside them.
TOGETHER := tests/unit tests/property tests/learning
PYTEST := $(BIN)/python -m pytest
SPREAD := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# run-tests WHICH,FOLDERS: those of TOGETHER and of these folders.
run-tests = $(BIN)/python tests/support/compile_kernels.py; if $(BIN)/python tests/support/private_shm.py; \
	then set -ex; $(PYTEST) $(1) $(SPREAD) $(TOGETHER) $(2); \
	else set -ex; $(PYTEST) $(1) $(SPREAD) $(TOGETHER); $(PYTEST) $(1) $(2); fi

test: $(DEV_READY)
ifeq ($(PYTEST_ARGS),)
	@$(call run-tests,-m 'not cluster and (learning or not slow)',tests/integration)
else
	$(PYTEST) $(PYTEST_ARGS)
endif

test-all: $(DEV_READY)
	@$(call run-tests,,tests/integration tests/faults)

gpu: $(DEV_READY)
	$(BIN)/python -m pytest tests/gpu

.PHONY: without-applications
without-applications: $(DEV_READY)
	$(BIN)/python tests/support/without_application.py --workers $(WORKERS)

check: $(DEV_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_READY)
	set -e; for bench in $(BENCH); do $(BIN)/python -m benchmarks $$bench --peers; done

study: $(DEV_READY)
	$(BIN)/python benchmarks/study/rookery_actors.py cartpole
	$(BIN)/python benchmarks/study/rookery_sharing.py --out runs/study
	$(BIN)/python benchmarks/study/rookery_perfect.py --out runs/perfect
	$(BIN)/python benchmarks/study/rookery_strength.py connect-four --out runs/strength
	$(BIN)/python benchmarks/study/rookery_strength.py ludo --out runs/strength
	$(BIN)/python benchmarks/study/rookery_selfplay.py --out runs/selfplay
	$(BIN)/python benchmarks/study/rookery_circles.py --out runs/circles
	$(BIN)/python benchmarks/study/rookery_federated.py

shelf: $(DEV_READY)
	$(BIN)/python benchmarks/shelf/rookery_shelf.py --out runs/shelf
	$(BIN)/python benchmarks/shelf/rookery_shelf.py --out runs/shelf --defaults --seeds 100-104

learning: $(DEV_READY)
	$(BIN)/python benchmarks/learning/rookery_defaults.py

proof: $(DEV_READY)
	$(BIN)/python -m benchmarks.proof --jobs $(WORKERS) --out runs/proof.md $(PROOF_ARGS)

.PHONY: misuse
misuse: $(DEV_READY)
	$(BIN)/python tests/misuse $(MISUSE_ARGS)

soak: $(DEV_READY)
	$(BIN)/python benchmarks/soak/rookery_memory.py

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -path './$(VENV)' -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(USER_READY): pyproject.toml $(PINS) | $(VENV_MADE)
	$(INSTALL) --editable .
	touch $@

$(DEV_READY): pyproject.toml $(PINS) | $(VENV_MADE)
	$(INSTALL) --editable '.[dev]'
	touch $(USER_READY) $@

# --clear: an interrupted set-up leaves half a .venv without its stamp.
$(VENV_MADE):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
		echo "$(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing), and Rookery needs" \
			"Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	touch $@
