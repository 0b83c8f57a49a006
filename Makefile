# make run     set up, and make the trace of DualPipeV
# make test    set up, and pass every fast test; what CI runs. Tests that need a browser are
#              skipped where there is none; with CI=true they fail
# make test-all  the same with the tests that take minutes
# make lint    style and types alone

# The first of these that is Python 3.11 or newer; or say `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
SCHEDULE ?= dualpipev

.PHONY: run test test-all lint setup clean

run: $(VENV)/.core
	$(BIN)/tracegen run --schedule $(SCHEDULE)
	@echo "open $(SCHEDULE).json at https://ui.perfetto.dev, or: $(BIN)/tracegen open $(SCHEDULE).json"

setup: $(VENV)/.dev

test: setup lint
	$(BIN)/python -m pytest -m "not nightly"

test-all: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tracegen schedules

# The package alone, without torch.
$(VENV)/.core: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "tracegen needs Python 3.11 or newer; make PYTHON=/path/to/it"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# And what the tests need.
$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
