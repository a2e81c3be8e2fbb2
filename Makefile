# Each target sets up what it needs in .venv and runs from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo docs bench fuzz clean

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

demo: .venv/demo
	$(BIN)/python examples/add_task.py

# The pages, in docs/_build/index.html; a warning is an error.
docs: .venv/docs
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build

.venv/docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

# Ours, braintrace 0.2.6 and BPTT side by side, each library in its own environment.
bench: .venv/ready .venv-reference/ready
	$(BIN)/python benchmarks/run.py $(CURDIR)/$(BIN)/python $(CURDIR)/.venv-reference/bin/python docs/benchmarks.md

.venv-reference/ready:
	$(PYTHON) -m venv .venv-reference
	.venv-reference/bin/pip install --quiet --disable-pip-version-check braintrace==0.2.6
	touch $@

# The property tests with many more programs: make fuzz PROGRAMS=20000
PROGRAMS ?= 5000
fuzz: .venv/ready
	BRAINTRACE_PROGRAMS=$(PROGRAMS) $(BIN)/pytest -n 2 tests/test_influence.py

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The demo alone needs less; what is there already serves it too.
.venv/demo: pyproject.toml
	test -e .venv/ready || { $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[demo]'; }
	touch $@

clean:
	rm -rf .venv .venv-reference docs/_build
