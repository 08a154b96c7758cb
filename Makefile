# Two commands: `make demo` trains a MovieLens model through TorchX, `make test` checks and tests it in ten minutes.
VENV := .venv
PYTHON ?= python3
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

unexport PYTHONDONTWRITEBYTECODE  # some images set it; then each process would compile all of this project again

.PHONY: demo check test test-more test-all tiers test-slurm24 durations lint docs site wheel costs models ids serving plans planned-memory times published peers start growth histories scale segments checkpoint-deltas serving-deltas pictures versions clean

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

test: $(VENV)/ready lint
	pytest $(SPREAD) -m "not more" $(TESTS)

# All the rest, which is marked with the reason why it is no part of `make test`. Of single files `pytest FILE` runs both.
test-more: $(VENV)/ready
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

lint: $(VENV)/ready
	ruff format --check .
	ruff check .
	pyrefly check
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict  # with --quiet it counts no warnings

# The documentation as a site, served until Ctrl-C. `make lint` builds it in site/, and refuses a dead link.
site: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 mkdocs serve

docs: $(VENV)/ready
	python -m docs.generate

# What each training feature costs on this machine: the table in docs/explanation/step.md. A few minutes, of a quiet machine.
costs: $(VENV)/ready
	python -m benchmarks.costs

# How well the built-in models predict MovieLens: the tables in docs/explanation/results.md. A few minutes, of a quiet machine.
models: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.models

# What each rule for ids costs in AUC on MovieLens: the table in docs/guides/ids.md. A few minutes.
ids: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.ids

# Size, latency and AUC of exported models: the table in docs/guides/export_forms.md. Some minutes, of a quiet machine.
serving: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.serving

# A server that takes over deltas under load: the table in docs/guides/serve.md. Ten minutes, of a quiet machine with 4 GB of disk.
serving-deltas: $(VENV)/ready
	python -m benchmarks.serving_deltas

# The pictures of the documentation, taken of real jobs by a Chromium. Some minutes.
pictures: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.pictures

# This project's planner beside TorchRec's: the table in docs/explanation/planner.md. Two minutes.
plans: $(VENV)/ready
	python -m benchmarks.planners

# A model that is trained on each segment beside others: the table in docs/explanation/continuous_results.md. Some minutes.
segments: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.segments

# Checkpoints of what changed at Criteo Kaggle's table sizes: the table in docs/guides/checkpoints.md. Some minutes, 8 GB.
checkpoint-deltas: $(VENV)/ready
	python -m benchmarks.checkpoint_deltas

# This project beside plain torch, TorchRec and other libraries: the tables in docs/explanation/performance.md. Some 15 minutes, of a
# quiet machine with 6 GB of disk.
peers: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.peers

# How long the demo takes from `torchx run` to its first step: the table in docs/explanation/performance.md. A minute.
start: $(VENV)/ready data/movielens/summary.json
	python -m benchmarks.start

# How a step's processor time grows with tables, ranks and batch: the figure in docs/explanation/step_limits.md. Some 15 minutes.
growth: $(VENV)/ready
	python -m benchmarks.growth

# HSTU over histories of unlike lengths, dealt to ranks and steps by cost, and without padding: the tables in docs/explanation/lanes.md and
# docs/guides/sequences.md. Four minutes of a quiet machine, with 4 GB of memory.
histories: $(VENV)/ready
	python -m benchmarks.histories

# What grows with the number of ranks, up to 4,096, without these ranks: the tables in docs/explanation/scale.md. Five minutes.
scale: $(VENV)/ready
	python -m benchmarks.scale

# The memory that plans are predicted to take beside what they took: the table in docs/explanation/planner.md. A few minutes.
planned-memory: $(VENV)/ready
	python -m benchmarks.planned_memory

# Planned and measured times of steps: the table in docs/explanation/step_times.md. Some minutes, of a quiet machine.
times: $(VENV)/ready
	python -m benchmarks.planned_times

# Published training runs beside their forecasts, and the constants that fit: the table in docs/explanation/published_runs.md. A minute.
published: $(VENV)/ready
	python -m benchmarks.published

# Tests of every room with other versions of Python and the triple: the table in docs/reference/versions.md. Half an hour and 15 GB; PATH needs
# python3.11 and python3.13.
versions: $(VENV)/ready
	python -m benchmarks.versions

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
