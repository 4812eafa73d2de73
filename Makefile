# `make bench` and `make test` prepare everything they need; nothing else has to be installed first.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: bench test lint study clean

bench: $(READY)
	$(BIN)/python -m pytest bench_suites -m cpu $(ARGS)

test: $(READY) lint
	$(BIN)/python -m pytest tests -n 2 --dist loadfile $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

study: $(READY)
	$(BIN)/python -m tests.studies.gate $(ARGS)

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
