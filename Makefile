# Two commands for a newcomer: `make demo` and `make test`. Both build their own virtual environment.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch only where it is already cheap to have: tests that compare with it skip themselves without.
STAMP := $(VENV)/.installed
# Patterns whose modules and kernels lie in generated/ to be read; of all others, digests.
SHOWN := causal streaming longformer documents natten_2d nsa_selected
SHOW := $(BIN)/maskc compile -o generated --target cpu --target sm_90a

.PHONY: demo test test-gpu matrix check generated docs format clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[test,figures]' $(EXTRAS)
	touch $@

demo: $(STAMP)
	$(BIN)/python docs/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not gpu and not matrix' $(PYTEST_ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

# Every architecture, head dimension and dtype through NVRTC, and again what the ledger
# tests/golden/compiled.txt remembers; needs the cuda13 extra, no GPU.
matrix: $(STAMP)
	$(BIN)/pip install --quiet -e '.[cuda13]' nvidia-cuda-nvdisasm
	$(BIN)/python -m pytest -m matrix $(PYTEST_ARGS)
	MASKC_COMPILE_ANEW=1 $(BIN)/python -m pytest $(PYTEST_ARGS) $$(grep -rl support.ledger tests/unit)

check: $(STAMP)
	$(BIN)/pip install --quiet 'ruff>=0.9'
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/maskc compile --check patterns --manifest generated/MANIFEST.txt
	for name in $(SHOWN); do $(SHOW) --check "patterns/$$name.py" || exit; done

generated: $(STAMP)
	$(BIN)/maskc compile patterns --manifest generated/MANIFEST.txt
	for name in $(SHOWN); do $(SHOW) "patterns/$$name.py" || exit; done

# The site, into build/site; a broken link or a docstring that cannot be read is an error.
docs: $(STAMP)
	$(BIN)/pip install --quiet -e '.[docs]'
	$(BIN)/python docs/error_index.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format:
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
