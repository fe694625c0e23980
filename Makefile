# The few commands of this project; README.md says what each is for.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BOOTSTRAP := bash tests/harness/bootstrap.sh
RUN := PYTHONPATH=tests:examples .venv/bin/python
# More compilers at once than cores, or tests beside them, cost all of them more than they save.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export UV_CONCURRENT_BUILDS ?= 1
# Hundreds of processes start here: each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
CXX_FILES := $(shell git ls-files '*.h' '*.cc' '*.cuh' '*.cu')

.PHONY: help demo test check bench cluster gpu images

help: ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## a small fabric from kubectl apply to telemetry, on this machine
	@$(BOOTSTRAP)
	@$(RUN) -m harness.demo

test: ## every test tier that this machine can run (TIER=unit runs one)
	@$(BOOTSTRAP)
	@$(RUN) -m harness.tiers $(TIER)

check: ## lint, types, layers, formatting
	@$(BOOTSTRAP)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/clang-format --dry-run --Werror $(CXX_FILES)

bench: ## speed beside peers (BENCH=proxy runs one, PLOT=1 draws too; NODES, PODS, RANKS for BENCH=scale)
	@$(BOOTSTRAP)
	@PYTHONPATH=tests:bench .venv/bin/python -m epfabric_bench $(BENCH) $(if $(PLOT),--plot) \
		$(if $(NODES),--nodes=$(NODES)) $(if $(PODS),--pods=$(PODS)) $(if $(RANKS),--ranks=$(RANKS))

cluster: ## a control plane for hands-on use, until Ctrl-C (NODES=2: with real nodes)
	@$(BOOTSTRAP)
	@$(RUN) -m $(if $(NODES),harness.node --nodes=$(NODES),harness.cluster)

images: ## the container images, without a daemon (IMAGE=agent builds one, ARCH=arm64 for arm64)
	@$(BOOTSTRAP)
	@$(RUN) -m harness.images $(if $(ARCH),--architecture=$(ARCH)) $(IMAGE)

gpu: ## tests and benches on this machine's GPU (PYTHON=python3: with the packages of that one)
ifdef PYTHON
	@PYTHONPATH=tests:bench:crds:agent:kernels:kernels/host:$$PYTHONPATH $(PYTHON) -m harness.gpu
else
	@$(BOOTSTRAP)
	@PYTHONPATH=tests:bench .venv/bin/python -m harness.gpu
endif
