# Short names for the commands of bootstrap.py and for what .ci/run checks.
.PHONY: run test test-full install lint format types docs docs-serve ci clean

export NO_MKDOCS_2_WARNING := 1

PYTHON ?= python3
BIN := .venv/bin

run:          ## install and run the quickstart
	$(PYTHON) bootstrap.py run

test:         ## install what the tests need and run the core tests
	$(PYTHON) bootstrap.py test

test-full:    ## every test, the slow ones included
	$(PYTHON) bootstrap.py test-full

install:      ## install what development needs
	$(PYTHON) bootstrap.py install

lint: install ## style and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install
	$(BIN)/mypy

docs: install ## the documentation as a web site in site/
	$(BIN)/mkdocs build --strict --quiet

docs-serve: install
	$(BIN)/mkdocs serve

ci:           ## all of it
	bash .ci/run

clean:        ## remove what was built, but no runs
	rm -rf .venv site build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
