# `make bench` and `make test` prepare everything they need; nothing else has to be installed first.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Packages of which tests import little or nothing.
RARE   := '/(transformers/models|sklearn|plotly|tests|mypy|mypyc|pygments/lexers|narwhals)/'
# Tests start hundreds of processes: let them share compiled bytecode, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =

.PHONY: prepare bench test rehearse lint docs study fuzz clean

prepare: $(READY)

# Four of the rows for a CPU. Its baselines are those of this machine, and stay out of baselines/; an interrupted recording
# goes on in the next run.
BENCH := .accel/bench/$(shell uname -n)
bench: $(READY)
	@test -e $(BENCH)/complete || echo "First run on this machine: it records a baseline, and the next one is judged against it."
	$(BIN)/python -m pytest bench_suites -m cpu -k "autoencoder or fine_tuning or small_cnn or small_gpt_training" \
		--accel-baselines $(BENCH) --accel-budget 1s --accel-tolerance auto --accel-within 2min \
		$(if $(wildcard $(BENCH)/complete),,--accel-record=3) $(ARGS)
	@test ! -d $(BENCH) || touch $(BENCH)/complete

# Files go in their own order, slow ones first: xdist would begin with those that have the most tests.
test: $(READY) lint
	$(BIN)/python -m pytest tests -m "not rehearsal" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# Long tests of examples, of a night on GitLab, and of two versions of torch.
rehearse: $(READY)
	$(BIN)/python -m pytest tests -m rehearsal $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Generates docs/reference, schemas and command outputs from the code, then builds the site in .site; open .site/index.html.
docs: $(READY)
	$(BIN)/python -m tests.docs.reference
	$(BIN)/sphinx-build --quiet --fail-on-warning -c docs . .site

study: $(READY)
	$(BIN)/python -m benchmarks.noise.study $(ARGS)

# Damaged files, messages and variables for every reader, 60 s; ARGS="--seconds 600" for longer.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(ARGS)

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# On all cores: pip compiles on one, and three test processes would compile the same files at once.
	$(BIN)/python -m compileall -q -j 0 -x $(RARE) $(VENV)/lib > /dev/null || true
	touch $(READY)
