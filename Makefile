# GNU make. `make` alone lists what there is. Everything is installed into the virtual environment .venv.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
CONSTRAINTS ?= constraints.txt
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)
# Idle threads of OpenMP wait without spinning: where others use the cores too, spinning slows torch down many times.
export OMP_WAIT_POLICY ?= PASSIVE
# Tests start hundreds of processes, which should not compile Python's sources each.
unexport PYTHONDONTWRITEBYTECODE

# Two processes more than there are cores, as tests of ranks wait for other processes; each takes a gigabyte or two.
# Tests of a file share fixtures, so a file stays in one process. tests/conftest.py sorts the files. As there are more
# processes than cores, torch computes in one thread of each.
WORKERS := $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -lt 7 ] && echo $$((n + 2)) || echo 8)
PYTEST = OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Contract, CPU kernels, pipeline, files and the loaders of both adapters: what another torch or Python could break. Not
# what is about GPUs alone, or about when kernels are compiled.
QUICK := tests/graph tests/files tests/sampling/test_reference_golden.py tests/sampling/test_cpu_sampler.py \
	tests/features/test_gather.py tests/features/test_buffers.py tests/pipeline/test_pipeline.py \
	tests/pipeline/test_plan.py $(filter-out tests/pyg/test_loader_gpu%,\
	$(wildcard tests/pyg/test_*_loader.py tests/pyg/test_loader_*.py)) \
	tests/dgl/test_dgl_samplers.py tests/dgl/test_dgl_loader.py tests/dgl/test_gb_loader.py

.PHONY: help demo test quick gpu lint docs bench notebooks upstream graphbolt clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | sort

demo: $(VENV)/demo.stamp ## train on real data, with the graph and without it
	@echo "== The genre of a film, from its people and theirs: GraphSAGE on the graph"
	@$(RUN) examples/pyg_node_classification.py --workers 1
	@echo "== The same model without the graph, from year, country, language and number of people"
	@$(RUN) examples/pyg_node_classification.py --no-graph --workers 1

test: lint ## the whole suite: style, types, tests
	$(PYTEST)

quick: WORKERS := $(shell getconf _NPROCESSORS_ONLN)# none of its tests waits
quick: $(VENV)/quick.stamp ## the tests that another version of torch, PyG or Python could fail, about a minute
	$(PYTEST) -m 'not slow' -k 'not lightning' $(QUICK)

# mypy gives its processes three seconds to start, which a busy machine may exceed: then it does without them.
lint: $(VENV)/dev.stamp ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy || $(RUN) -m mypy --num-workers 0

docs: $(VENV)/dev.stamp ## build the documentation into site/
	$(VENV)/bin/zensical build --clean --strict

# With RUN=python3, by the packages that this Python has: machines with GPUs may have no network.
gpu: GPUS ?= 1
gpu: $(if $(filter $(VENV)/bin/python,$(RUN)),$(VENV)/dev.stamp) ## all tests that need a GPU, ten minutes; GPUS=2: those that need several
	$(RUN) tests/gpu/run.py $(GPUS)

bench: $(VENV)/dev.stamp ## compare with other samplers on this machine, about a minute
	$(RUN) tests/benchmarks cpu --quick

notebooks: $(VENV)/dev.stamp ## run the notebooks again, and keep what they show
	$(VENV)/bin/jupyter execute --inplace examples/notebooks/*.ipynb

upstream: LIBRARIES = $(PYG:%=--pyg %) $(DGL:%=--dgl %)
upstream: PROJECTS = $(RELBENCH:%=--relbench %) $(GRAPHSTORM:%=--graphstorm %)
upstream: $(if $(PYG)$(DGL)$(RELBENCH)$(GRAPHSTORM),$(VENV)/dev.stamp) ## run PyG's and DGL's own tests and scripts: PYG=CHECKOUT DGL=CHECKOUT, about an hour
	@[ -n "$(strip $(LIBRARIES) $(PROJECTS))" ] || { \
	  echo "Name checkouts: make upstream PYG=../pytorch_geometric DGL=../dgl"; exit 2; }
	$(if $(strip $(LIBRARIES)),$(RUN) tests/upstream/run.py $(LIBRARIES) \
	  $(patsubst %,--graphbolt %,$(wildcard .venv-graphbolt/bin/python)) --output docs/project/compatibility.md)
	$(if $(strip $(PROJECTS)),$(RUN) tests/upstream/run.py $(PROJECTS) --output docs/project/compatibility-projects.md)

# With it, tests/upstream/test_graphbolt_peer.py compares manyhop with GraphBolt, and `make upstream` runs GraphBolt alone.
graphbolt: $(RUN) ## install DGL's own GraphBolt into .venv-graphbolt, with the old torch that it needs: 5 GB, for tests
	[ -e .venv-graphbolt ] || $(PYTHON) -m venv .venv-graphbolt
	PIP_CONSTRAINT= .venv-graphbolt/bin/python -m pip install --quiet --requirement tests/upstream/graphbolt.txt

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp says that a set of packages is installed, so that make does it once.
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(RUN)
	@echo "Installing manyhop, torch and PyG into $(VENV), some minutes ..."
	$(INSTALL) 'setuptools>=77'
	$(INSTALL) --no-build-isolation --editable '.[pyg]' bokeh_sampledata
	@touch $@

$(VENV)/quick.stamp: pyproject.toml $(CONSTRAINTS) | $(RUN)
	$(INSTALL) 'setuptools>=77'
	$(INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(RUN)
	@echo "Installing manyhop, torch, PyG and the tools of the test suite into $(VENV), some minutes ..."
	$(INSTALL) 'setuptools>=77'
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@ $(VENV)/demo.stamp $(VENV)/quick.stamp

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "manyhop needs Python 3.11 or later; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu it needs the package python3-venv."; \
	  rm -rf $(VENV); exit 1; }
