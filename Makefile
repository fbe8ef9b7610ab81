# Two commands on a fresh machine: `make demo` and `make test`. Both prepare .venv first; `make setup` does only that.

# The first of these that is there; any Python from 3.11 works: make demo PYTHON=python3.12
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
# On a machine without a GPU whose package index offers no CPU build of torch, name an index that does:
#     make demo TORCH_INDEX=<address of PyTorch's CPU wheels>
TORCH_INDEX ?=

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: demo test test-fast setup lint types check clean help

help:
	@echo "make demo    install into .venv and run the demo"
	@echo "make test    install into .venv and run every check"
	@echo "make test-fast  the quick ones, in about a minute and a half"
	@echo "make setup   install into .venv only"
	@echo "make clean   remove .venv and caches"

setup: $(STAMP)

# torch first and alone: asked for together with others, a resolver may look at newer builds with gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Labelwise needs Python 3.11 or newer; none was found. Try: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Labelwise needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=/path/to/python"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@echo "Installing torch (about 200 MB, once)"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@echo "Installing labelwise and its tools"
	@$(PIP) -e '.[dev]'
	@$(BIN)/python scripts/check_environment.py
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/labelwise demo

test: $(STAMP) lint types
	$(BIN)/python scripts/check_environment.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

# The quick checks: no browser, database, cluster or long test.
test-fast: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not slow and not browser and not postgres and not ray"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
