# Two commands on a fresh machine: `make demo` and `make test`. Both prepare .venv first; `make setup` does only that.

# The first of these that is there; any Python from 3.11 works: make demo PYTHON=python3.12
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
# On a machine without a GPU, PyTorch's own index has CPU builds of torch, 200 MB instead of gigabytes with CUDA:
#     make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# torch for test-lowest and test-newest, such as TORCH=2.13.0; PyTorch's own index decides where none is given.
TORCH ?=
VERSIONS = $(PYTHON) scripts/test_versions.py --python $(PYTHON) $(if $(TORCH),--torch $(TORCH))

# make setup LOCKED=1 installs the whole tested set from requirements.lock, and refuses a file whose SHA-256 is not in it.
LOCKED ?=

# Where CPU builds of torch are, for make lock: a folder of wheels or a page of links to them.
TORCH_FILES ?=

.PHONY: demo docs docs-versions test test-fast test-lowest test-newest setup lock audit sbom lint types check clean help

help:
	@echo "make demo    install into .venv and run the demo"
	@echo "make test    install into .venv and run every check"
	@echo "make test-fast  the quick ones, in about a minute and a half"
	@echo "make test-lowest, make test-newest  the quick ones, with the lowest versions allowed or the newest of everything"
	@echo "make docs    build the documentation site into site/"
	@echo "make docs-versions  the same for every tag, into site-versions/"
	@echo "make setup   install into .venv only"
	@echo "make setup LOCKED=1  the same from requirements.lock, with the hash of every file checked"
	@echo "make audit   look for known vulnerabilities in the versions of requirements.lock"
	@echo "make lock, make sbom  write requirements.lock; write the software bill of materials into dist/"
	@echo "make clean   remove .venv and caches"

setup: $(if $(LOCKED),.venv/.locked,$(STAMP))

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

# Nothing is built with what has no hash: the build tools are in the lock too. .installed, so that other targets use this.
.venv/.locked: pyproject.toml requirements.lock
	@test -f $@ || test ! -e .venv || { echo "LOCKED=1 checks what it installs, and .venv holds packages already. Run make clean first"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing what requirements.lock allows"
	@$(BIN)/python -m pip --disable-pip-version-check install -q --require-hashes -r requirements.lock \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) || { test -f $@ || rm -rf .venv; exit 1; }
	@$(BIN)/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation -e .
	@$(BIN)/python scripts/check_environment.py
	@touch $(STAMP) $@

lock:
	@test -n "$(TORCH_FILES)" || { echo "Where are CPU builds of torch? make lock TORCH_FILES=FOLDER, or a page of links to them"; exit 1; }
	@$(PYTHON) scripts/lock.py "$(TORCH_FILES)"

audit:
	@$(PYTHON) scripts/audit.py

sbom: $(STAMP)
	@$(BIN)/python scripts/sbom.py

demo: $(STAMP)
	@$(BIN)/labelwise demo

test: $(STAMP) lint types
	$(BIN)/python scripts/check_environment.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

# The quick checks: no browser, database, cluster or long test.
test-fast: $(STAMP) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not slow and not browser and not postgres and not ray"

# Environments of their own, in .versions/; uv installs them.
test-lowest:
	$(VERSIONS) lowest

test-newest:
	$(VERSIONS) newest

# Strict: a link that leads nowhere fails. Opens from the folder, without a server: site/index.html.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The site of every tag that has one, with a page to choose: site-versions/index.html.
docs-versions: .venv/.docs
	$(BIN)/python scripts/site_versions.py

.venv/.docs: $(STAMP)
	@$(PIP) -e '.[docs]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/check_language.py

types: $(STAMP)
	$(BIN)/mypy

clean:
	rm -rf .venv .versions site site-versions .pytest_cache .mypy_cache .ruff_cache .hypothesis
