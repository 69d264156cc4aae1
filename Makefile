# Everything runs in .venv, made from pyproject.toml alone. PYTHON picks the interpreter (3.10 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Compiled once, whatever the environment says of it, and beside the packages: a run starts many processes.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode
# By file, on all cores: what the tests of a file share is made once. The order is tests/conftest.py's.
# AGAIN=1: only what failed in the last run, one after another.
CHOSEN := $(if $(AGAIN),-n 0 --last-failed --last-failed-no-failures none)
PYTEST := $(BIN)/python -m pytest $(or $(CHOSEN),-n auto --dist loadfile --no-loadscope-reorder) -rs
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# On PATH, or the one that `make controlplane` built.
HELM = $(or $(shell command -v helm),$(lastword $(wildcard $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hoss/renderers/helm-*/helm)))
PROTOS := $(wildcard proto/hoss/v1/*.proto)

# Where Python looks for a directory for temporary files, which pip and pytest take before they say anything.
TEMPORARY = "$$TMPDIR" "$$TEMP" "$$TMP" /tmp /var/tmp /usr/tmp .

.PHONY: help temporary setup demo test test-all simulate faults test-redis test-pythons soak churn controlplane e2e kubelet go check model bench bench-check dashboard-pictures terminal-pictures generate check-generated docs check-docs format clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

temporary:
	@for folder in $(TEMPORARY); do [ -d "$$folder" ] && [ -w "$$folder" ] && exit 0; done; \
	  echo "temporary files can be written nowhere, and everything here takes some: name a directory of yours with TMPDIR" >&2; exit 1

$(VENV)/.runtime: pyproject.toml | temporary
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,bench,kubernetes]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

setup: $(VENV)/.dev  ## a virtual environment with everything for development

demo: $(VENV)/.runtime  ## what HOSS is for: a race of two schedulers, a whole cluster, a crash, an audit
	$(BIN)/hoss demo

test: $(VENV)/.dev  ## every invariant and every promise, in five to eight minutes on two cores; TESTS=tests/unit for a part
	HOSS_TESTS=quick $(PYTEST) -m "not thorough" --ignore=tests/e2e/kubernetes $(TESTS)

test-all: $(VENV)/.dev  ## everything but Kubernetes: also the long loads, all servers, more examples, 5,000 short and 540 long simulations, or SEEDS=300 LONG=200
	HOSS_TESTS=all HOSS_TEST_SEEDS=$(or $(SEEDS),5000) HOSS_TEST_LONG_SEEDS=$(or $(LONG),540) $(PYTEST) --ignore=tests/e2e/kubernetes $(TESTS)

soak: $(VENV)/.dev  ## property tests with new random examples, for MINUTES=60 or as many as told
	$(BIN)/python tests/soak.py --minutes $(or $(MINUTES),60) $(TESTS)

churn: $(VENV)/.dev  ## whether tables grow on a real platform where everything comes and goes, for MINUTES=60 or as many as told
	$(BIN)/python -m tools.churn --minutes $(or $(MINUTES),60)

simulate: $(VENV)/.dev  ## whole platforms in one process with faults by seed; SEEDS=200 or as many as told, FIRST=0, JOBS=1; KUBERNETES=1 or SHORT=1
	$(BIN)/python -m tools.simulation --seeds $(or $(SEEDS),200) --first $(or $(FIRST),0) --jobs $(or $(JOBS),1) $(if $(KUBERNETES),--kubernetes) $(if $(SHORT),--short)

faults: $(VENV)/.dev  ## real faults on platforms of real processes (all take half an hour); RUNS=5 of each, FAULT="--fault NAME" for one
	$(BIN)/python -m tools.faults --runs $(or $(RUNS),5) $(FAULT)

test-redis: $(VENV)/.dev  ## the contract and integration tests on the oldest Redis; HOSS_TEST_REDIS=PATH for another server
	HOSS_TEST_REDIS=$${HOSS_TEST_REDIS:-oldest} $(PYTEST) -m "not thorough" $(or $(TESTS),tests/contract tests/integration)

test-pythons: $(VENV)/.dev  ## the built wheel on the oldest and the newest Python of this machine: demo, a client, a smoke of the tests
	$(BIN)/python tests/pythons.py

controlplane: $(VENV)/.dev  ## kube-apiserver, kube-scheduler, etcd and helm, built once (needs Go, some minutes) into a cache
	$(BIN)/python -m tools.controlplane
	$(BIN)/python tests/e2e/kubernetes/renderers.py

e2e: controlplane  ## end-to-end tests against a real Kubernetes control plane
	$(PYTEST) tests/e2e/kubernetes

kubelet: controlplane  ## pods on nodes with a real kubelet, built once; needs root, Go, containerd and runc
	$(BIN)/python -m tools.kubelet
	$(PYTEST) tests/e2e/kubernetes/test_kubelet.py

go: $(VENV)/.dev  ## examples/go/bin: the scheduler of docs/tutorials/go.md (needs Go)
	$(BIN)/python -m tools.go_example

image:  ## the image hoss:VERSION, and its digest; needs a Docker engine. HOSS_BUILD_OPTIONS are docker's
	@docker info >/dev/null 2>&1 || { echo "no Docker engine answers 'docker info', and it takes one to build the image"; exit 1; }
	docker build $(HOSS_BUILD_OPTIONS) --file deploy/Dockerfile --tag hoss:$(VERSION) .
	@docker image inspect --format '{{.Id}}  hoss:$(VERSION)' hoss:$(VERSION)

chart:  ## the Helm chart as dist/hoss-VERSION.tgz, and its digest; needs helm
	@test -n "$(HELM)" || { echo "there is no helm: install it, or 'make controlplane' builds it where Go is installed"; exit 1; }
	$(HELM) lint deploy/helm/hoss
	$(HELM) package deploy/helm/hoss --version $(VERSION) --app-version $(VERSION) --destination dist
	@sha256sum dist/hoss-$(VERSION).tgz

check: $(VENV)/.dev check-generated check-docs  ## lint, format, types, architecture, generated code and pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

model: $(VENV)/.dev  ## the models of the ledger protocol, searched by spin (needs spin and gcc, some minutes); CASES=NAME for some
	$(BIN)/python -m tools.model $(CASES)

bench: $(VENV)/.dev  ## what each core's operations cost on this machine
	$(BIN)/python -m pytest tests/benchmarks/bench_cores.py --benchmark-quiet

bench-check: $(VENV)/.dev  ## whether ratios of such costs, and of waits, are within their limits (tests/benchmarks/limits.yaml)
	$(BIN)/python -m pytest $(CHOSEN) tests/benchmarks/bench_ratios.py

dashboard-pictures: $(VENV)/.dev  ## docs/images/dashboard-*.png, of the dashboard at work; needs chromium and chromium-driver
	PYTHONPATH=tests $(BIN)/python -m e2e.dashboard_pictures docs/images

terminal-pictures: $(VENV)/.dev  ## docs/images/*.svg, of what `hoss demo` and `hoss top` print
	PYTHONPATH=tests $(BIN)/python -m e2e.terminal_pictures docs/images

generate: $(VENV)/.dev  ## hoss/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=. $(PROTOS)

check-generated: generate
	@git diff --exit-code --stat -- hoss/v1 || { echo "hoss/v1 is not what proto/ says: commit what 'make generate' made"; exit 1; }

docs: $(VENV)/.dev  ## docs/reference, and the schema of the chart's values, from the code
	$(BIN)/python -m tools.reference

check-docs: $(VENV)/.dev
	$(BIN)/python -m tools.reference --check

# The Python of deploy/Dockerfile; uv resolves for every machine at once, which pip cannot.
lock: $(VENV)/.dev  ## deploy/requirements.lock: versions and hashes of what the image contains, newest that pyproject.toml allows
	$(BIN)/pip install --quiet --upgrade --target $(VENV)/lock uv
	PYTHONPATH=$(VENV)/lock $(BIN)/python -m uv pip compile --quiet --upgrade --universal --python-version 3.12 \
	  --extra kubernetes --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
	  --output-file deploy/requirements.lock pyproject.toml

audit: $(VENV)/.dev  ## known vulnerabilities of what deploy/requirements.lock names; needs the network
	$(BIN)/pip install --quiet --upgrade --target $(VENV)/audit pip-audit
	PYTHONPATH=$(VENV)/audit $(BIN)/python -m pip_audit --requirement deploy/requirements.lock --require-hashes --disable-pip

format: $(VENV)/.dev  ## let ruff format and fix
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
