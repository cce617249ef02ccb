# What a newcomer needs: `make demo`, `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help env java servers demo test lint types unit spark nightly soak bench docs clean

help: ## Lists these targets.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':[^#]*## ' '{ printf "%-8s  %s\n", $$1, $$2 }'

env: $(STAMP) ## Makes the environment in .venv.

$(STAMP): pyproject.toml
	@scripts/need-python $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing databus and what it needs into $(VENV) (some 500 MB the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[kafka,spark,mysql,store]" --group dev
	@echo "compiling the decoder of the mysql source, once"
	@$(BIN)/python -W ignore::RuntimeWarning -m databus.sources.mysql._kernels || echo "that failed; its first start tries again"
	@touch $@

java: ## Sees to it that there is a Java for Spark.
	@scripts/need-java

servers: $(STAMP) ## Sees to it that there are servers for the tests.
	@scripts/need-servers

demo: $(STAMP) java $(if $(filter mariadb mysql,$(SOURCE))$(SINK),servers) ## Runs the whole of it: a shop, a relay, a callback, a Spark pipeline, kills, and a comparison. SOURCE=mariadb or mysql for a shop on a server, SINK=kafka or opensearch for a copy there.
	@$(BIN)/databus demo $(if $(SOURCE),--source $(SOURCE)) $(if $(SINK),--sink $(SINK))

test: $(STAMP) java servers ## Checks databus: lint, types, architecture, tests; some twenty minutes on two cores.
	@scripts/check

lint: $(STAMP) ## Lint and format only.
	@scripts/check lint

types: $(STAMP) ## Types and architecture only.
	@scripts/check types

unit: $(STAMP) servers ## Tests that need no Spark.
	@scripts/check unit

spark: $(STAMP) java ## Tests that need Spark.
	@scripts/check spark

nightly: $(STAMP) java servers ## The tests of `make test` and the slower ones; an hour or two.
	@scripts/check nightly

soak: $(STAMP) java servers ## The long campaigns; hours.
	@scripts/check soak

bench: $(STAMP) java servers ## All benchmarks; see docs/benchmarks.md. The peers of capture are installed for it.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	@$(BIN)/databus bench all

docs: $(STAMP) ## Writes the pages of docs/ that come from the code.
	@$(BIN)/python scripts/write_reference.py

clean: ## Removes the environment and caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
