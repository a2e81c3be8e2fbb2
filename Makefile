# Each target sets up what it needs in .venv and runs from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
PIP := pip install --quiet --disable-pip-version-check

.PHONY: test lint format tests docs wheel matrix demo bench devices charts results fuzz soak clean

# What must hold before a change goes in, two targets at a time: the tests begin when lint is done.
# They build the wheel and use it too.
test: .venv/ready
	$(MAKE) --no-print-directory -j 2 lint docs tests

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

tests: .venv/ready
	$(BIN)/pytest -n 2 --dist worksteal

# The pages, in docs/_build/index.html. The tutorials run, two at a time; a warning is an error.
docs: .venv/ready
	$(BIN)/sphinx-build -W --keep-going -q -E -j 2 docs docs/_build

# What a release uploads, in dist.
wheel: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null

# A fast part of the tests at both ends of the bounds in pyproject.toml, recorded in docs/matrix.md.
OLDEST := jax==0.8.0 jaxlib==0.8.0 numpy==2.0.0 brainstate==0.5.0 saiunit==0.5.0 brainevent==0.2.0
NEWEST := --upgrade
MATRIX ?= tests/rules/test_textbook.py tests/shells/test_function.py tests/shells/test_brainstate.py
TRIED := python jax numpy brainstate saiunit brainevent tests

matrix: .venv-oldest/row .venv-newest/row
	{ sed '/^|/,$$d' docs/matrix.md; \
	  echo '| | $(TRIED) |' | sed 's/\([a-z]\) \([a-z]\)/\1 | \2/g'; \
	  echo '|$(foreach _,end $(TRIED),---|)'; cat $^; } > .venv-newest/matrix.md
	mv .venv-newest/matrix.md docs/matrix.md

.venv-%/row: .venv-%/ready FORCE
	.venv-$*/bin/pytest -n 1 $(MATRIX) | tee .venv-$*/answer
	.venv-$*/bin/python -c "import platform; from importlib.metadata import version as v; \
	  found = [platform.python_version(), *map(v, '$(filter-out python tests,$(TRIED))'.split())]; \
	  answer = open('.venv-$*/answer').read().strip().splitlines()[-1]; \
	  print('| $*', *found, answer.split(' in ')[0], sep=' | ', end=' |\n')" > $@

.venv-oldest/ready: PINS = $(OLDEST)
.venv-newest/ready: PINS = $(NEWEST)
.venv-oldest/ready .venv-newest/ready: pyproject.toml
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/$(PIP) $(PINS) --editable '.[brainstate]' pytest pytest-xdist hypothesis
	touch $@

FORCE:

demo: .venv/demo
	$(BIN)/python examples/add_task.py

# Ours, braintrace 0.2.6 and BPTT side by side, each library in its own environment.
bench: .venv/ready .venv-reference/ready
	$(BIN)/python benchmarks/run.py $(CURDIR)/$(BIN)/python $(CURDIR)/.venv-reference/bin/python docs/benchmarks.md
	$(BIN)/python benchmarks/brains.py $(CURDIR)/$(BIN)/python $(CURDIR)/.venv-reference/bin/python docs/benchmarks.md
	$(BIN)/python benchmarks/growth.py docs/benchmarks.md

# What is moved between devices, from programs compiled for 4 and 64 of them.
devices: .venv/ready
	$(BIN)/python benchmarks/devices.py docs/many_devices.md

# The charts of that page and its first section, from the figures that were measured last.
charts: .venv/ready
	$(BIN)/python benchmarks/charts.py docs/benchmarks.md

.venv-reference/ready:
	$(PYTHON) -m venv .venv-reference
	.venv-reference/bin/$(PIP) braintrace==0.2.6 numba
	touch $@

# Published results at laptop size, in docs/results.md.
results: .venv/ready
	$(BIN)/python results/run.py docs

# The property tests with many more programs: make fuzz PROGRAMS=20000
PROGRAMS ?= 5000
fuzz: .venv/ready
	BRAINTRACE_PROGRAMS=$(PROGRAMS) $(BIN)/pytest -n 2 tests/graph/test_influence.py tests/engine/test_window.py \
		tests/learn/test_exactness.py

# Everything that may go wrong in a long run, for an hour: make soak MINUTES=60 SEED=1
MINUTES ?= 60
SEED ?= 1
soak: .venv/ready
	$(BIN)/python tests/soak.py --minutes $(MINUTES) --seed $(SEED)

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP) --editable '.[dev]'
	touch $@

# The demo alone needs less; what is there already serves it too.
.venv/demo: pyproject.toml
	test -e .venv/ready || { $(PYTHON) -m venv .venv && $(BIN)/$(PIP) --editable '.[demo]'; }
	touch $@

clean:
	rm -rf .venv .venv-* dist build docs/_build
