# Two commands: `make demo` trains a MovieLens model through TorchX, `make test` checks and tests it in ten minutes.
VENV := .venv
PYTHON ?= python3
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

unexport PYTHONDONTWRITEBYTECODE  # some images set it; then each process would compile all of this project again

.PHONY: demo extras torch others check test test-more test-all tiers test-slurm24 durations style lint docs site wheel measure clean

demo: $(VENV)/ready data/movielens/summary.json
	torchx run -s local_cwd dlrm.multi_node --config trainer/config/presets/movielens.toml -j 1x2 --out runs/movielens

data/movielens/summary.json: | $(VENV)/ready
	torchx run -s local_cwd data.movielens --out data/movielens

# Lint, types and the unit tests, which start no process and do not compute for seconds; a minute, so of each test with
# many parameters a sample.
check: $(VENV)/extras lint
	pytest --unit --numprocesses 2 -r fE

# Every promise once, in ten minutes, of all tests or of those in TESTS; of the largest matrices a sample. Tests wait a lot, so there are
# more workers than cores. Each file runs on one worker, the longest file first (tests/support/durations.py); xdist itself would begin with
# the file of the most tests.
SPREAD := --numprocesses 5 --dist loadfile --no-loadscope-reorder

test: $(VENV)/extras style
	pytest $(SPREAD) -m "not more" $(TESTS)

# All the rest, which is marked with the reason why it is no part of `make test`. Of single files `pytest FILE` runs both.
test-more: $(VENV)/extras lint
	pytest $(SPREAD) -m more $(TESTS)

# Both with whole matrices: every plan restored by every other, every fault at every moment.
test-all: $(VENV)/extras lint
	pytest $(SPREAD) --all

# The names of all tests, each after the target that runs it, to compare before and after tests are moved.
tiers: $(VENV)/extras
	@pytest --collect-only -q -m "not more" | sed -n "s/^tests.*::/test &/p"
	@pytest --collect-only -q -m more | sed -n "s/^tests.*::/test-more &/p"

# The tests of both again, to record what each file takes (tests/durations.json) and to print the twenty slowest tests.
durations: $(VENV)/extras
	pytest $(SPREAD) --record-durations --durations 20

# The wheel and the source distribution, in dist/.
wheel: $(VENV)/ready
	python -m hatchling build

# The tests that need a Slurm, against 24.11 instead of the system's own.
test-slurm24: $(VENV)/extras
	python tests/support/slurm24.py .slurm24
	SLURM_PREFIX=$(CURDIR)/.slurm24 pytest -m slurm

style: $(VENV)/extras
	ruff format --check .
	ruff check .
	pyrefly check

# Of these, `make test` has the style alone.
lint: style
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict  # with --quiet it counts no warnings

# The documentation as a site, served until Ctrl-C. `make lint` builds it in site/, and refuses a dead link.
site: $(VENV)/extras
	NO_MKDOCS_2_WARNING=1 mkdocs serve

docs: $(VENV)/extras
	python -m docs.generate

# Measures WHAT and writes it into the documentation; without WHAT, lists what can be measured. MovieLens is made first.
measure: $(VENV)/extras $(if $(WHAT),data/movielens/summary.json)
	@python -m benchmarks $(WHAT)

# uv, where it is on PATH, takes a third of pip's time, but does not read pip's configuration: what it cannot install, pip does. Neither
# compiles modules, which would double the time of pip: Python compiles those that it imports.
UV := $(shell command -v uv)
PIP := $(VENV)/bin/pip install --quiet --no-deps --no-compile
INSTALL = $(if $(UV),$(UV) pip install --quiet --no-deps --python $(VENV)/bin/python -r $(1) || ! echo "pip installs what uv could not" >&2 || )$(PIP) -r $(1)
NETWORK := { echo "error: check the network; pip's own variables name a proxy (HTTPS_PROXY) or another index (PIP_INDEX_URL)" >&2; exit 1; }

# An index without torch's CPU builds gives that for CUDA, which does not load without CUDA's libraries, several GB.
$(VENV)/ready: requirements-cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is not Python 3.11 or later; make PYTHON=python3.11 names another" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "error: install Python's venv (Debian: python3-venv)" >&2; exit 1; }
	@$(MAKE) --no-print-directory --jobs=2 torch others || $(NETWORK)
	$(VENV)/bin/python -c "import torch" 2> /dev/null || $(VENV)/bin/pip install --quiet -c requirements-cpu.txt torch
	$(PIP) --no-build-isolation --editable .
	touch $@

# torch has half of all bytes, so the others are installed meanwhile. Its build for CPUs is not on the default index: pip's configuration
# may name where it is.
torch:
	$(PIP) "$$(grep ^torch== requirements-cpu.txt)"

others:
	sed "/^torch==/d; /make extras/,\$$d" requirements-cpu.txt > $(VENV)/others.txt
	$(call INSTALL,$(VENV)/others.txt)

# What other extras, tests and documentation need.
extras: $(VENV)/extras

$(VENV)/extras: $(VENV)/ready
	sed "1,/make extras/d" requirements-cpu.txt > $(VENV)/extras.txt
	$(call INSTALL,$(VENV)/extras.txt) || $(NETWORK)
	touch $@

clean:
	rm -rf $(VENV) .slurm24 data runs site
