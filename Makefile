# Two commands for a newcomer: `make demo` and `make test`. Both build their own virtual environment.
# `make test` answers in two minutes; `make test-all` and CI run every test that needs no GPU.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch only where it is already cheap to have: tests that compare with it skip themselves without.
STAMP := $(VENV)/.installed
# What needs no GPU; to load the others takes seconds in every process. Neighbours stay together where
# work is divided: what one test has planned is there for the next.
HOST := --ignore tests/gpu
ALL_CORES := $(HOST) -n auto --dist worksteal
# Tests that ask what NVRTC made of a source, those whose sources its front end reads before the
# emulator runs them, and those that draw more, or compile otherwise, in full.
ASK_LEDGER := $$(grep -rlE 'support.ledger|test_sm90a_sources' tests/unit)
EMULATED := $$(grep -rlE 'emulat|support.(hopper|host_|probe)' tests/unit tests/property)
THOROUGH := $$(grep -rlE 'examples\(|THOROUGH|inductor|support.cpu_harness|shared_cases' tests/unit tests/property)

# To parse every module of what is installed takes longer than to install it: each is when imported.
QUIETLY := --quiet --no-compile

# Processes that tests start would else parse every module anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all fast test-gpu matrix ledger cover mutants check generated decisions docs format clean

$(STAMP): pyproject.toml
	@echo "Building a virtual environment in $(VENV), once: a minute or so, most of it downloads."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(QUIETLY) --upgrade pip
	$(BIN)/pip install $(QUIETLY) -e '.[test,figures]' $(EXTRAS)
	touch $@

# What `check` and `docs` need more, once, too.
$(VENV)/.%: $(STAMP)
	$(BIN)/pip install $(QUIETLY) -e '.[$*]'
	touch $@

# One mask drawn, compiled for this machine's CPU, run on a real text and checked: some seconds.
demo: $(STAMP)
	@$(BIN)/python docs/demo.py

# An answer soon: all tests that cost little, and of the others those that reach what nothing else
# reaches. The rest is named in tests/golden/later.txt, which `make cover` writes.
test: $(STAMP)
	@echo "Without PyTorch about 4,600 tests in two minutes on two cores. make test-all: every test."
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(or $(PYTEST_ARGS),--soon $(ALL_CORES))

# Everything that needs no GPU, on all cores, with the reason of every test that is skipped.
test-all: $(STAMP)
	@echo "Without PyTorch and NVRTC about 5,000 tests, some five minutes on two cores; with them 8,000, some"
	@echo "fifteen. What is skipped is named at the end, with what it needs."
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(or $(PYTEST_ARGS),$(ALL_CORES) -rs)

# While editing: messages, the house rules, the language, sets, layouts and plans.
fast: $(STAMP)
	$(BIN)/python -m pytest $(or $(PYTEST_ARGS),-n auto) tests/messages tests/test_layers.py \
	    tests/unit/test_dsl_*.py tests/unit/test_ir_*.py tests/unit/test_layout_*.py \
	    tests/unit/test_plan_*.py tests/unit/test_runtime_attention.py

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

# Every architecture, head dimension and dtype through NVRTC, and again what the ledger
# in tests/golden (compiled.txt, machine_code.txt) remembers; needs the cuda13 extra, no GPU.
matrix: $(STAMP)
	$(BIN)/pip install $(QUIETLY) -e '.[cuda13]' nvidia-cuda-nvdisasm
	$(BIN)/python -m pytest -m matrix $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m 'not gpu and not matrix' --thorough $(PYTEST_ARGS) $(THOROUGH)
	MASKC_COMPILE_ANEW=1 $(BIN)/python -m pytest $(PYTEST_ARGS) $(ASK_LEDGER)

# After a kernel's text has changed: adds to the ledger what the compiler makes of the new text, and
# lists anew which sources of emulated tests NVRTC accepts.
ledger: $(STAMP)
	rm -f tests/golden/accepted.txt
	MASKC_WRITE_LEDGER=1 $(BIN)/python -m pytest -m 'not gpu and not matrix' \
	    $(or $(PYTEST_ARGS),-n auto --dist worksteal) $(ASK_LEDGER) $(EMULATED)

# What each test costs and reaches, in one process on an idle machine, then what `make test` runs.
cover: $(STAMP)
	$(BIN)/pip install $(QUIETLY) coverage
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(HOST) \
	    -p tests.support.cover --cover-to build/cover.pickle
	$(BIN)/python -m tests.support.cover build/cover.pickle

# Small faults in templates and the package, and which test finds each: tests/golden/mutants.txt. It
# resumes where it ended; PART=3/40 is a part of it, ONLY='maskc/layout/*' some files.
mutants: $(STAMP)
	$(BIN)/python -m tests.support.mutants --share $(or $(PART),1/1) --only '$(or $(ONLY),*)'
	$(BIN)/python -m tests.support.mutants --summary

check: $(VENV)/.dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python .ci/prose
	$(BIN)/python .ci/generated --check
	$(BIN)/python -m tests.support.decisions --check
	$(BIN)/python docs/pattern_index.py --check

generated: $(STAMP)
	$(BIN)/python .ci/generated

# How calls of all patterns run, in tests/golden/decisions.txt; needs no GPU.
decisions: $(STAMP)
	$(BIN)/python -m tests.support.decisions

# The site, into build/site; a broken link or a docstring that cannot be read is an error.
docs: $(VENV)/.docs
	$(BIN)/python docs/error_index.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide broken links

format:
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
