# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv by itself.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
ONLY ?=
SCALE ?=
SHORT ?=
PROCESSES ?= 2
STAMP := $(VENV)/.installed

.PHONY: help venv demo demo-models test check stubs bench bench-peers bench-export soak soak-export clean
.DEFAULT_GOAL := help

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

venv: $(STAMP) ## .venv with both programs, the client, the examples and the tools

$(STAMP): pyproject.toml client/pyproject.toml hatch_build.py $(wildcard bundle/native/*.[ch])
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "making $(VENV): packages of 3.3 GB, mostly TensorFlow; minutes, by the connection"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[export,serve,examples,dev]' --editable client
	@touch $@

demo: venv ## train, export, serve and ask: real recommendations (DATA=DIR: MovieLens there)
	$(BIN)/python -m examples.movielens.demo $(if $(DATA),--data $(DATA)) $(if $(SHORT),--short)

demo-models: venv ## every example trained, exported, served, asked and compared (ONLY="dlrm ple", SCALE=article)
	$(BIN)/python -m examples.demo_models $(if $(SCALE),--scale $(SCALE)) $(foreach name,$(ONLY),--only $(name))

test: venv ## the tests, in two processes (PROCESSES=N: in N, each of up to 2 GB)
	$(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile

check: venv ## ruff, mypy, import directions, stub and format drift, duplicate code
	scripts/check

stubs: venv ## regenerates the protobuf stubs
	scripts/generate_stubs

bench: venv ## the service beside bare calls and the peers that are installed; writes docs/benchmarks.md (SCALE=1: all rows)
	$(BIN)/python -m tests.bench --document $(if $(SCALE),--scale $(SCALE))
	$(BIN)/python -m tests.bench.features
	$(BIN)/python -m tests.bench.wide
	$(BIN)/python -m tests.bench.rankings

bench-peers: venv ## virtual environments of what make bench measures beside the service, 12 GB under build/peers
	$(BIN)/python -m tests.bench.peers.environments

bench-export: venv ## the exporter beside cp and TensorFlow's own path; its memory by the size of a table
	$(BIN)/python -m tests.bench.exporter

soak: venv ## version changes under load (by one process and by two), lost callers, an overload; at most twenty minutes
	$(BIN)/python -m tests.soak
	$(BIN)/python -m tests.soak.switches --versions 100 --workers 2

soak-export: venv ## damaged checkpoints for a minute; then exports killed at 240 random moments and begun again, at most ten
	$(BIN)/python -m tests.soak.damaged_checkpoints 60
	$(BIN)/python -m tests.soak.export

clean: ## removes what was built, but .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
