# Every target creates .venv on its first run and reuses it. Needs only Python 3.11+ and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
# what runs ONNX models; gpu brings 350 MB that only an NVIDIA GPU uses
RUNTIME := $(if $(shell command -v nvidia-smi),gpu,cpu)
export DVC_NO_ANALYTICS := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)
# where it is set, every process compiles the project anew: a second of each, and of tests half a minute
unexport PYTHONDONTWRITEBYTECODE

.PHONY: repro test fast test-all test-pages lint install benchmark benchmark-serve gpu clean

repro: $(STAMP)            ## prepare, train, evaluate, export: whatever has changed
	dvc repro
	@echo "next: . $(BIN)/activate; cse serve data/bundle, or your own text: cse adapt --help"

# two processes share the files out; each keeps to one thread; one that dies ends the run with the test's name
PYTEST := OMP_NUM_THREADS=1 python -m pytest -n 2 --dist loadfile --max-worker-restart 0

test: $(TOOLS)             ## fast tests, lint and types (5 minutes on two cores)
	$(MAKE) --no-print-directory -j2 lint fast # types are checked on one processor: tests take the other

fast: $(TOOLS)
	$(PYTEST) --durations 12 --durations-min 3

test-all: $(TOOLS)         ## slow end-to-end and fault tests, and the pages' commands (25 minutes on two cores)
	$(SLOW) tests

# a third process: lost machines, workers and servers are waited for; files in the order of tests/conftest.py
PAGES := README.md docs deploy/README.md
SLOW = $(PYTEST) -n 3 --no-loadscope-reorder -p tests.pages.plugin -m slow --timeout 1800 -rs --durations 12 $(PAGES)

test-pages: $(TOOLS)       ## the pages alone: every command block, in copies of a finished clone
	$(SLOW)

lint: $(TOOLS)
	ruff check .
	ruff format --check .
	mypy
	lint-imports

install: $(TOOLS)          ## all that the other targets need

# some peers' pins do not agree with ours: they have environments of their own
PEERS := .venv-peers
benchmark: $(STAMP)        ## training, encoding, a sweep: relative to peers at their best, in one run
	-$(MAKE) --no-print-directory $(PEERS)/.installed # without it, its peers are skipped by name
	$(PIP) -e '.[benchmarks]'
	for name in train encode sweep; do python -m benchmarks.$$name || exit 1; done

# with `make gpu PYTHON=...` no environment is made: torch and a few small packages are enough, see docs/results.md
DEVICE := cuda
ifeq ($(origin PYTHON),file)
gpu: $(STAMP)              ## checks, memory and speed on a GPU (10 minutes); DEVICE=cpu: the dry form
	python -m benchmarks.gpu --device $(DEVICE) $(ARGUMENTS)
else
gpu:
	$(PYTHON) -m benchmarks.gpu --device $(DEVICE) $(ARGUMENTS)
endif

INFINITY := .venv-infinity
benchmark-serve: $(STAMP) $(INFINITY)/.installed ## `cse serve` against infinity and sentence-transformers, in one run
	$(PIP) -e '.[benchmarks,serve]'
	python -m benchmarks.serve $(ARGUMENTS)

$(INFINITY)/.installed: benchmarks/peers/infinity.txt
$(PEERS)/.installed: benchmarks/peers/encoders.txt
$(INFINITY)/.installed $(PEERS)/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check -r $<
	touch $@

comma := ,
# of 39,000 files a quarter is ever imported: byte code is made then, and not by pip, one file after another
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt
# pip, not uv or poetry: the constraints pin versions, and pip picks the build of torch that fits the machine
$(STAMP) $(TOOLS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall -qq --yes onnxruntime$(if $(filter cpu,$(RUNTIME)),-gpu) # they overwrite each other
	$(PIP) torch
	$(PIP) -e '.[$(if $(filter $@,$(TOOLS)),dev,train$(comma)minilm$(comma)serve$(comma)search),$(RUNTIME)]'
	touch $(STAMP) $@

clean:                     ## remove the environments, keep data
	rm -rf $(VENV) $(INFINITY) $(PEERS)
