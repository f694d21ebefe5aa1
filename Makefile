# `make demo` trains, searches and evaluates CAME on real text; `make test` runs the tests; `make torture` runs kills, damages, power cuts,
# failing system calls and a million mutated inputs, in hours. Each creates its environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest --numprocesses $(shell n=$$(env -u OMP_NUM_THREADS nproc); echo $$((n < 8 ? n : 8))) --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes would compile the same modules
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test device torture mutants environment lint docs clean

demo:
	bash examples/quickstart.sh

environment: $(VENV)/.for-tests

# torch first and pinned (constraints.txt), from where pip is set to look: the build of PyPI is for CUDA, 2.7 GB; that of
# https://download.pytorch.org/whl/cpu is not: PIP_EXTRA_INDEX_URL
$(VENV)/.for-tests: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: environment
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg --no-logo

# tests/device by itself: its device has to be there before torch; mypy takes one core meanwhile
test: environment
	$(MAKE) --jobs=2 lint device
	$(PYTEST)

device: environment
	$(PYTEST) tests/device

# all of it, or what PARTS names in pytest's way: PARTS="power_loss or damage"
torture: environment
	$(PYTEST) -m torture $(if $(PARTS),-k "$(PARTS)")

# 400 changes of one expression each, and the tests that should notice; hours, but a second run goes on where the first was stopped
mutants: environment
	$(BIN)/python tests/mutants.py --count 400 --jobs $(shell nproc)

# the documentation as a site, in site/
docs: environment
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
