# The commands that matter. Each sets up what it needs and can be run again at any time.
.PHONY: help setup demo test test-long test-setup lint types pytest bench lock clean
.DEFAULT_GOAL := help
BIN := .venv/bin

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*##\(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup:  ## make .venv and fetch the jars of Kafka and Iceberg (under a second when nothing changed)
	@scripts/setup

demo: setup  ## kill a pipeline on purpose, and count every record in ClickHouse
	@$(BIN)/landonce demo

test: test-setup lint types pytest  ## everything: linter, formatter, types, all tests

test-setup: setup
	@scripts/test-setup

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy --strict
	$(BIN)/mypy --strict -p landonce

pytest: test-setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

test-long: test-setup  ## the tests that take too long for every change; CONTRIBUTING.md says which
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m long

bench: setup  ## measure on this machine
	@$(BIN)/python -m bench $(DOCS)

lock: setup  ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --all-extras --generate-hashes \
		--no-annotate --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

clean:  ## remove what was built; jars stay in their cache
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
