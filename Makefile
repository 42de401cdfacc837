# make          says what there is to make
# make train    makes .venv with what a user needs, and trains CartPole in front of your eyes
# make setup    makes .venv with everything that tests, checks and benchmarks need
# make test     runs the tests              PYTEST_ARGS='tests/unit -x' chooses
# make gpu      runs the tests of what only a GPU does, on a machine that has one
# make check    format, lint, types, layers
# make format   mends what can be mended: format and lint
# make bench    compares with the peers     BENCH='replay learn' chooses
# make study    returns of one, two and eight actors at equal env steps; of runs that share; of games; of clients
# make shelf    the table of algorithms and tasks, beside SB3 with its zoo's settings (hours on 2 cores)
# make soak     private memory of a run with eight actors over ten minutes
# make clean    removes build products and caches; .venv and runs stay

PYTHON ?= python3
SCENARIO ?= cartpole
BENCH ?= replay collect learn async weights train checkpoint start share pathfinding selfplay server
PYTEST_ARGS ?=
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

.PHONY: help train setup test gpu check format bench study shelf soak clean
.NOTPARALLEL: # two pips in one .venv tread on each other
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile

train: $(USER_READY)
	$(BIN)/rookery train $(SCENARIO)

setup: $(DEV_READY)

# Faults and whole runs look at the machine's processes and memory: nothing else may run beside them.
ALONE := tests/integration tests/faults
TOGETHER := tests/unit tests/property tests/learning

test: $(DEV_READY)
ifeq ($(PYTEST_ARGS),)
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(TOGETHER)
	$(BIN)/python -m pytest $(ALONE)
else
	$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

gpu: $(DEV_READY)
	$(BIN)/python -m pytest tests/gpu

check: $(DEV_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_READY)
	set -e; for bench in $(BENCH); do $(BIN)/rookery bench $$bench --peers; done

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
