# New here? Run `make demo`, then `make test`. Both build their own virtual environment. `make test` is the part of the
# tests that answers soon; `make test-all` and CI run every test that needs no GPU.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch is not installed by default. Tests that need it skip themselves; see EXTRAS in CONTRIBUTING.
STAMP := $(VENV)/.installed
# Tests that need no GPU. Collecting the others takes seconds in every process.
HOST := --ignore tests/gpu
ALL_CORES := $(HOST) -n auto --dist worksteal
# ASK_LEDGER: tests that read what NVRTC made of a source. EMULATED: tests whose sources NVRTC's front end reads before
# the emulator runs them. THOROUGH: tests with more cases in full.
ASK_LEDGER := $$(grep -rlE 'support.ledger|test_sm90a_sources' tests/unit)
EMULATED := $$(grep -rlE 'emulat|support.(hopper|host_|probe)' tests/unit tests/property)
THOROUGH := $$(grep -rlE 'examples\(|THOROUGH|inductor|support.cpu_harness|shared_cases' tests/unit tests/property)

# uv installs in a third of pip's CPU time, where it is at hand. pip byte-compiles every module unless told not to, which
# takes longer than installing it. Python does it on import.
INSTALL := $(if $(shell command -v uv),uv pip install --python $(BIN)/python --quiet,$(BIN)/pip install --quiet --no-compile)

# With this variable set, each process that a test starts would parse every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all fast test-gpu matrix ledger cover mutants check generated decisions docs format clean

$(STAMP): pyproject.toml
	@echo "Building a virtual environment in $(VENV). This happens once and takes about a minute."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[test,figures]' $(EXTRAS)
	touch $@

# Extras that `check` and `docs` need, installed once.
$(VENV)/.%: $(STAMP)
	$(INSTALL) -e '.[$*]'
	touch $@

# Draws a mask, compiles it for this CPU, runs it on a text and checks it, in a few seconds.
demo: $(STAMP)
	@$(BIN)/python docs/demo.py

# Runs cheap tests, and of the others those that reach most for their cost. tests/golden/later.txt names the rest;
# `make cover` writes that list.
test: $(STAMP)
	@echo "The tests that answer soon: about 4,900 without PyTorch. 'make test-all' runs every test."
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(or $(PYTEST_ARGS),--soon $(ALL_CORES))

# Runs everything that needs no GPU, on all cores, and prints why tests were skipped. `make matrix` runs the cases that
# tests/golden/nightly.txt names.
test-all: $(STAMP)
	@echo "About 5,000 tests and five minutes on two cores; with PyTorch and NVRTC 8,000 tests and twelve"
	@echo "minutes. Skipped tests are listed at the end, with what they need. 'make fast' takes a minute."
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(or $(PYTEST_ARGS),$(ALL_CORES) -rs)


# Run this while editing: messages, layers, the language, sets, layouts and plans.
fast: $(STAMP)
	$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-n auto) tests/messages tests/test_layers.py \
	    tests/unit/test_dsl_*.py tests/unit/test_ir_*.py tests/unit/test_layout_*.py \
	    tests/unit/test_plan_*.py tests/unit/test_runtime_attention.py

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

# Compiles every architecture, head dimension and dtype with NVRTC, and checks the ledger in
# tests/golden (compiled.txt, machine_code.txt) again. Needs the cuda13 extra, but no GPU.
matrix: $(STAMP)
	$(INSTALL) -e '.[cuda13]' nvidia-cuda-nvdisasm jupyterlab==4.6.6
	$(BIN)/python -m pytest -m matrix $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'not gpu and not matrix' --thorough $(PYTEST_ARGS) $(THOROUGH)
	MASKC_COMPILE_ANEW=1 $(BIN)/python -m pytest $(PYTEST_ARGS) $(ASK_LEDGER)
	$(BIN)/python docs/pattern_index.py --check --thorough

# Run this after a kernel's source has changed. It adds the new source to the ledger, and lists anew which sources of
# emulated tests NVRTC accepts.
ledger: $(STAMP)
	rm -f tests/golden/accepted.txt
	MASKC_WRITE_LEDGER=1 $(BIN)/python -m pytest -m 'not gpu and not matrix' \
	    $(or $(PYTEST_ARGS),-n auto --dist worksteal) $(ASK_LEDGER) $(EMULATED)

# Measures what each test costs and reaches, and chooses what `make test` and CI run. Needs an idle machine and all extras.
cover: $(STAMP)
	$(INSTALL) coverage
	mkdir -p build
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(HOST) \
	    -p tests.support.cover --cover-to build/cover.pickle
	$(BIN)/python -m tests.support.cover build/cover.pickle

# Plants small faults and writes which test finds each to tests/golden/mutants.txt. It resumes where it ended.
# PART=3/40 is a part of the faults, ONLY='maskc/layout/*' those of some files.
mutants: $(STAMP)
	$(BIN)/python -m tests.support.mutants --share $(or $(PART),1/1) --only '$(or $(ONLY),*)'
	$(BIN)/python -m tests.support.mutants --summary

check: $(VENV)/.dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python .ci/prose
	$(BIN)/python .ci/patterns

generated: $(STAMP)
	$(BIN)/python .ci/generated

# Writes which kernels the calls of all patterns take to tests/golden/decisions.txt. Needs no GPU.
decisions: $(STAMP)
	$(BIN)/python -m tests.support.decisions

# Builds the site into build/site. A broken link, or a docstring that cannot be read, is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/error_index.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide broken links

format:
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
