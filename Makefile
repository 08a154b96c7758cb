# Two commands: `make demo` trains a MovieLens model through TorchX, `make test` checks and tests it in ten minutes.
VENV := .venv
PYTHON ?= python3
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

unexport PYTHONDONTWRITEBYTECODE  # some images set it; then each process would compile all of this project again

.PHONY: demo check test test-more test-all tiers test-slurm24 durations style lint docs site wheel measure clean

demo: $(VENV)/ready data/movielens/summary.json
	torchx run -s local_cwd dlrm.multi_node --config trainer/config/presets/movielens.toml -j 1x2 --out runs/movielens

data/movielens/summary.json: | $(VENV)/ready
	torchx run -s local_cwd data.movielens --out data/movielens

# Lint, types and the unit tests, which start no process and do not compute for seconds; a minute, so of each test with
# many parameters a sample.
check: $(VENV)/ready lint
	pytest --unit --numprocesses 2 -r fE

# Every promise once, in ten minutes, of all tests or of those in TESTS; of the largest matrices a sample. Tests wait a lot, so there are
# more workers than cores. Each file runs on one worker, the longest file first (tests/support/durations.py); xdist itself would begin with
# the file of the most tests.
SPREAD := --numprocesses 5 --dist loadfile --no-loadscope-reorder

test: $(VENV)/ready style
	pytest $(SPREAD) -m "not more" $(TESTS)

# All the rest, which is marked with the reason why it is no part of `make test`. Of single files `pytest FILE` runs both.
test-more: $(VENV)/ready lint
	pytest $(SPREAD) -m more $(TESTS)

# Both with whole matrices: every plan restored by every other, every fault at every moment.
test-all: $(VENV)/ready lint
	pytest $(SPREAD) --all

# The names of all tests, each after the target that runs it, to compare before and after tests are moved.
tiers: $(VENV)/ready
	@pytest --collect-only -q -m "not more" | sed -n "s/^tests.*::/test &/p"
	@pytest --collect-only -q -m more | sed -n "s/^tests.*::/test-more &/p"

# The tests of both again, to record what each file takes (tests/durations.json) and to print the twenty slowest tests.
durations: $(VENV)/ready
	pytest $(SPREAD) --record-durations --durations 20

# The wheel and the source distribution, in dist/.
wheel: $(VENV)/ready
	python -m hatchling build

# The tests that need a Slurm, against 24.11 instead of the system's own.
test-slurm24: $(VENV)/ready
	python tests/support/slurm24.py .slurm24
	SLURM_PREFIX=$(CURDIR)/.slurm24 pytest -m slurm

style: $(VENV)/ready
	ruff format --check .
	ruff check .
	pyrefly check

# Of these, `make test` has the style alone.
lint: style
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict  # with --quiet it counts no warnings

# The documentation as a site, served until Ctrl-C. `make lint` builds it in site/, and refuses a dead link.
site: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 mkdocs serve

docs: $(VENV)/ready
	python -m docs.generate

# Measures WHAT and writes it into the documentation; without WHAT, lists what can be measured. MovieLens is made first.
measure: $(VENV)/ready $(if $(WHAT),data/movielens/summary.json)
	@python -m benchmarks $(WHAT)

# An index without torch's CPU builds gives that for CUDA, which does not load without CUDA's libraries, several GB.
$(VENV)/ready: requirements-cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: $(PYTHON) is not Python 3.11 or later; make PYTHON=python3.11 names another" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "error: install Python's venv (Debian: python3-venv)" >&2; exit 1; }
	$(VENV)/bin/pip install --quiet --no-deps -r requirements-cpu.txt \
		|| { echo "error: check the network; pip's own variables name a proxy (HTTPS_PROXY) or another index (PIP_INDEX_URL)" >&2; exit 1; }
	$(VENV)/bin/python -c "import torch" 2> /dev/null || $(VENV)/bin/pip install --quiet -c requirements-cpu.txt torch
	$(VENV)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) .slurm24 data runs site
