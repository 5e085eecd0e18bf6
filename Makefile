# The commands that matter. Each sets up what it needs and can be run again at any time.
BENCHES := changes clickhouse dedup formats iceberg sql
.PHONY: help setup demo test test-all quick quick-all quick-tests test-long test-setup lint types collect pytest coverage docs bench lock clean $(BENCHES)
.DEFAULT_GOAL := help
BIN := .venv/bin
# Images of containers often tell Python not to keep what it compiled. Then each of the many processes of a run compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -o tmp_path_retention_policy=failed
COVERING := $(patsubst %,tests/unit/test_%.py,batch_machine cases dedup_decisions dedup_rules fanout_account guard_values ledger_state letter_plans move_in move_in_clickhouse operate \
	pace packing push_rows query_parts query_protocol query_snapshots reasons rebase_rows roll_back seek shard_map source start target tokens tolerance topic_identity worker_steps)
ALL_TESTS := $(PYTEST) -m "not long" --worlds 6000 --durations=25

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*##\(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup:  ## make .venv and fetch the jars of Kafka and Iceberg (under a second when nothing changed)
	@scripts/setup

demo: setup  ## kill a pipeline on purpose, and count every record in ClickHouse
	@$(BIN)/landonce demo

test:  ## everything: linter, formatter, types, the site, all tests but the long ones; the commit goes to build/green-test
	@scripts/green test $(MAKE) --no-print-directory test-all

test-all: test-setup
	@$(MAKE) --no-print-directory -j2 lint types collect coverage docs
	$(ALL_TESTS)

quick:  ## for every commit: linter, types, and tests that need no server; the commit goes to build/green-quick
	@scripts/green quick $(MAKE) --no-print-directory quick-all

quick-all: lint
	@$(MAKE) --no-print-directory -j2 types quick-tests

quick-tests: setup
	$(PYTEST) -q -r fE -m "not long" --no-servers --worlds 2000 --durations=10 tests/model tests/unit tests/contract

test-setup: setup
	@scripts/test-setup

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy --strict
	MYPYPATH=tests $(BIN)/mypy --strict -p landonce -p bench

collect: setup  # a module that cannot be imported ends the run here, and not after twenty minutes
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq -m "not long" >build/collected || { tail -n 40 build/collected; exit 1; }

pytest: test-setup
	$(ALL_TESTS)

test-long: test-setup  ## the tests that take too long for every change; CONTRIBUTING.md says which
	$(PYTEST) -m long --durations=25
	$(PYTEST) -m "not long" tests/model
	$(PYTEST) -m "not long" --spark-workers tests/integration
	$(PYTEST) -m "not long" --hypothesis-profile=long tests/unit

coverage: setup  ## fails unless its unit tests and a few worlds of the model checker reach every branch of landonce/protocol
	$(BIN)/python -m coverage run -m pytest -q -p no:cacheprovider -m "not long and not uncounted" --no-servers --worlds 250 tests/model $(COVERING)
	$(BIN)/python -m coverage report

docs: setup  ## build the site in build/site from README.md and docs/; a link that leads nowhere ends it
	@scripts/docs

bench: setup  ## measure on this machine: all, or one: make bench formats
	@$(BIN)/python -m bench $(filter $(BENCHES),$(MAKECMDGOALS)) $(DOCS)

$(BENCHES):
	@:

lock: setup  ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --all-extras --generate-hashes \
		--no-annotate --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

clean:  ## remove what was built; jars stay in their cache
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
