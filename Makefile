# Every target creates .venv on its first run and reuses it. Needs only Python 3.11+ and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export DVC_NO_ANALYTICS := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: repro test test-all lint install benchmark benchmark-serve gpu clean

repro: $(STAMP)            ## prepare, train, evaluate, export: whatever has changed
	dvc repro

# two processes share the files out; each keeps to one thread
PYTEST := OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile

test: $(STAMP) lint        ## fast tests, lint and types (under 10 minutes)
	$(PYTEST)

test-all: $(STAMP)         ## slow end-to-end and fault tests (under 50 minutes)
	$(PYTEST) -m slow --timeout 1800 --ignore tests/scale
	python -m pytest -m slow --timeout 1800 tests/scale # loses workers and machines: timing counts, so nothing beside it

lint: $(STAMP)
	ruff check .
	ruff format --check .
	mypy
	lint-imports

install: $(STAMP)

benchmark: $(STAMP)        ## speed relative to sentence-transformers, in one run
	pip install -q -c constraints.txt -e '.[benchmarks]'
	python -m benchmarks.throughput

# with `make gpu PYTHON=...` no environment is made: torch and a few small packages are enough, see docs/gpu.md
DEVICE := cuda
ifeq ($(origin PYTHON),file)
gpu: $(STAMP)              ## checks, memory and speed on a GPU (10 minutes); DEVICE=cpu: the dry form
	python -m benchmarks.gpu --device $(DEVICE) $(ARGUMENTS)
else
gpu:
	$(PYTHON) -m benchmarks.gpu --device $(DEVICE) $(ARGUMENTS)
endif

# a peer's pins do not agree with ours: it has an environment of its own
INFINITY := .venv-infinity
benchmark-serve: $(STAMP) $(INFINITY)/.installed ## `cse serve` against infinity and sentence-transformers, in one run
	pip install -q -c constraints.txt -e '.[benchmarks,serve]'
	python -m benchmarks.serve $(ARGUMENTS)

$(INFINITY)/.installed: benchmarks/peers/infinity.txt
	test -x $(INFINITY)/bin/python || $(PYTHON) -m venv $(INFINITY)
	$(INFINITY)/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/peers/infinity.txt
	touch $@

# pip, not uv or poetry: the constraints pin versions, and pip picks the build of torch that fits the machine
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:                     ## remove the environment, keep data
	rm -rf $(VENV) $(INFINITY)
