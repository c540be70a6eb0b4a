# Everything a person or CI does here. `make` alone prints what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPBENCH := $(BIN)/opbench
SUITE ?= suites/quick.toml

# With an NVIDIA driver, the CUDA extra that it can run; without a C++ compiler, one from a wheel.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1)
# CUDA 13 compiles for Turing (7.5) and later GPUs only; older ones keep CUDA 12 whatever the driver.
CAPABILITY := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -n | head -n 1 | tr -d .)
CUDA := $(shell test "$(DRIVER)" -ge 580 -a "$(CAPABILITY)" -ge 75 2>/dev/null && echo cuda13 || { test "$(DRIVER)" -ge 525 2>/dev/null && echo cuda12; })
COMPILER := $(shell command -v g++ clang++ >/dev/null || echo compiler)
# Tests on a GPU compare findings with compute-sanitizer; its wheel is for drivers of CUDA 13.
SANITIZER := $(and $(filter cuda13,$(CUDA)),sanitizer)
EMPTY :=
EXTRAS = $(subst $(EMPTY) $(EMPTY),$(COMMA),$(strip $(1) $(CUDA) $(COMPILER)))
COMMA := ,
TORCH := torch==2.13.0+cpu

.PHONY: help
help:  ## Print this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

# One stamp per set of extras, so that each is installed once and again when pyproject.toml changes.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.quick: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(if $(call EXTRAS),[$(call EXTRAS)])'
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(call EXTRAS,test $(SANITIZER))]'
	@touch $@ $(VENV)/.quick

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(call EXTRAS,dev $(SANITIZER))]'
	@touch $@ $(VENV)/.test $(VENV)/.quick

# The build without CUDA, a tenth of the other's size: where pip looks by itself, else where PyTorch keeps it.
$(VENV)/.torch: | $(VENV)/.test
	$(BIN)/python -c 'import torch' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' \
		|| $(BIN)/python -m pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu '$(TORCH)'
	@touch $@

.PHONY: quick test test-all torch-tests messages check lint docs picture format bench networks winners mutants sizes clean
quick: $(VENV)/.quick  ## Install what is needed and run the quick suite: on the GPU if there is one, else on the CPU
	$(OPBENCH) run $(SUITE)

# Where PYTHONDONTWRITEBYTECODE is set, each of thousands of processes would compile every module anew.
# A second thread of NumPy's spins for 50 ms in each of them, while the cores have tests of their own to run.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: $(VENV)/.test  ## Install what is needed and test each part of opbench and one variant of every kernel file; tests/long_tests.toml lists the rest
	$(PYTEST) -m 'not long'

test-all: $(VENV)/.test  ## Install what is needed and run every test
	$(PYTEST)

torch-tests: $(VENV)/.torch  ## Install PyTorch for the CPU and run the tests that want it
	$(PYTEST) $(shell grep -rlE 'importorskip."torch"|_has."torch"' tests) -k 'torch or peers'

# Kernels and their headers; not the cheats of the tests, where expectations name lines.
KERNELS = find variants opbench/gpu/driver -name '*.cu' -o -name '*.cuh'

# Of two runs of one problem the table takes the one with more variants, else the first.
LADDERS := $(addprefix reports/h200/,full layers gradients hopper mma norms activations convolutions attention reductions language products quantised \
	sorts segments token_sampling latent_attention quick ceilings networks trainings) reports/h100/trainings

check: lint docs  ## Everything that must hold before a change lands: format, lint, types, docs in step, every test
	$(OPBENCH) ladder --check $(LADDERS)
	$(PYTEST)

lint: $(VENV)/.dev  ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(KERNELS) | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

docs: $(VENV)/.dev  ## The guide as a site in build/site; a dead link or a page without a place is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

messages: $(VENV)/.test  ## Write tests/messages/, the wording of errors that tests compare, after a message changed
	OPBENCH_WRITE_MESSAGES=1 $(BIN)/python -m pytest $(shell grep -rl same_messages tests --include='test_*.py')

picture: $(VENV)/.quick  ## Record the terminal picture of README.md, docs/check.svg, from a run of this moment
	$(BIN)/python docs/terminal_picture.py

format: $(VENV)/.dev  ## Write the sources in the project's format, and the generated pages
	$(BIN)/python tests/commands_page.py
	$(BIN)/python tests/stalls_page.py
	$(BIN)/python tests/goals_page.py
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(KERNELS) | xargs $(BIN)/clang-format -i

bench: $(VENV)/.test  ## What opbench itself costs (pytest-benchmark)
	$(BIN)/python -m pytest tests/bench --benchmark-enable --benchmark-only -p no:xdist

# NAME-BATCH-PRECISION. A network whose record is there is skipped, so the same command resumes; -k goes on after a failure.
NETWORKS := $(addprefix lenet-,1-f32) $(addprefix alexnet-,1-f32 1-bf16 128-f32 128-bf16) \
	$(addprefix unet-,1-f32 1-bf16 16-f32 16-tf32 16-bf16) $(addprefix resnet50-,1-bf16 64-bf16) \
	$(addprefix gpt2-,1-bf16 16-bf16) $(addprefix mobilenetv3-,1-f32 1-bf16 64-bf16) \
	$(addprefix diffusion-,1-bf16 32-bf16)
NETWORKS_OUT ?= reports/networks
NETWORK_LIMIT_S ?= 600
part = $(word $(1),$(subst -, ,$(2)))
# Those of a list of files that are not there in packed form, as tests/evidence.py packs them.
missing = $(foreach file,$(1),$(if $(wildcard $(file).xz),,$(file)))

networks: $(call missing,$(NETWORKS:%=$(NETWORKS_OUT)/%/network.json))  ## Time the networks of README.md with PyTorch, on a GPU, into NETWORKS_OUT (needs PyTorch)

$(NETWORKS_OUT)/%/network.json: | $(VENV)/.quick
	timeout $(NETWORK_LIMIT_S) $(OPBENCH) net run $(call part,1,$*) --batch $(call part,2,$*) --precision $(call part,3,$*) \
		--layout nhwc --compare torch --tune --out $(@D)

# Every measurement that README, guide and ladders quote, in parts of at most nine minutes on a GPU:
#   make evidence PART='ceilings quick full'     the same command goes on where a part was stopped
# Delete a part's folder to measure it again. One GPU model, one driver and one commit of the kernels for all parts.
EVIDENCE ?= reports/h200
SUITE_PARTS := quick full layers gradients hopper mma norms activations convolutions attention reductions language products quantised sorts segments token_sampling latent_attention resnet gpt2
PARTS := ceilings selftest $(SUITE_PARTS) networks trainings counters tune torch ship judge gpus
PART ?= $(PARTS)

.PHONY: evidence counters-cpu $(PARTS:%=evidence-%)
# With GPUS=2, two jobs at a time, each sees one GPU. A job is a part, a network or a training; only `gpus` needs all GPUs.
GPUS ?= 1
jobs = $(foreach part,$(filter-out gpus,$(PART)),$(if $(filter undefined,$(origin jobs_$(part))),evidence-$(part),$(jobs_$(part))))
jobs_networks = $(call missing,$(NETWORKS:%=$(EVIDENCE)/networks/%/network.json))
jobs_trainings = $(call missing,$(TRAININGS:%=$(EVIDENCE)/trainings/%/train.json)) $(EVIDENCE)/loss-curves/gpt2-4-bf16.json
evidence: | $(VENV)/.quick  ## Measure what the documents quote, on a GPU, into EVIDENCE; PART='quick full' selects parts, GPUS=2 uses two GPUs
	printf '%s\n' $(jobs) | xargs -r -n 1 -P $(GPUS) --process-slot-var=$(if $(filter 1,$(GPUS)),JOB_SLOT,CUDA_VISIBLE_DEVICES) \
		$(MAKE) NETWORKS_OUT=$(EVIDENCE)/networks || failed=1; \
	$(if $(filter gpus,$(PART)),$(MAKE) evidence-gpus || failed=1;) \
	$(BIN)/python tests/evidence.py $(EVIDENCE) && test -z "$$failed"

evidence-ceilings: | $(VENV)/.quick
	test -e $(EVIDENCE)/ceilings/ceilings.json || $(OPBENCH) ceiling --out $(EVIDENCE)/ceilings

evidence-selftest: $(call missing,$(EVIDENCE)/selftest/selftest.json $(EVIDENCE)/selftest-clock/selftest.json)

$(EVIDENCE)/selftest/selftest.json: | $(VENV)/.quick
	$(OPBENCH) selftest --only cheats --out $(@D)

$(EVIDENCE)/selftest-clock/selftest.json: | $(VENV)/.quick
	$(OPBENCH) selftest --only floor,stamps,flush,aa,slowdown,clocks,wall --out $(@D)

$(SUITE_PARTS:%=evidence-%): evidence-%: | $(VENV)/.quick
	@# Exit code 1: a variant is wrong, and the run holds it as all others.
	test -e $(EVIDENCE)/$*/results.jsonl.xz || $(OPBENCH) run suites/$*.toml --no-report --out $(EVIDENCE)/$* \
		$(if $(wildcard $(EVIDENCE)/$*/results.jsonl),--resume) || test $$? = 1

evidence-networks:
	$(MAKE) networks NETWORKS_OUT=$(EVIDENCE)/networks

DATA_lenet := digits
DATA_alexnet := digits:224
DATA_unet := textures
DATA_gpt2 := text
DATA_resnet50 := digits:224
LARGE_TRAININGS := $(foreach p,f32 tf32 bf16,alexnet-128-$(p) unet-16-$(p))
TRAININGS := lenet-128-f32 lenet-128-bf16 $(LARGE_TRAININGS) unet-1-f32 unet-1-bf16 resnet50-64-bf16 gpt2-4-bf16 gpt2-16-bf16
# Half of the candidates of ResNet-50 are not tuned: newer variants of the same operators replace these at its layers.
NOT_TUNED_resnet50 := conv2d*/implicit_gemm* conv2d_wgrad/thread_per_weight conv2d_dgrad/gather conv2d/nhwc_filters_shared \
	conv2d/nhwc_direct* conv2d*/nhwc_mma_bf16 conv2d*/nhwc_mma_bf16_split batchnorm2d_*/nhwc_vector batchnorm2d_*/three_passes \
	batchnorm2d_*/welford batchnorm2d_*/two_reductions batchnorm2d_*/one_pass
# $(1): NAME-BATCH-PRECISION
train = $(OPBENCH) net train $(call part,1,$(1)) --batch $(call part,2,$(1)) --precision $(call part,3,$(1)) \
	--data $(DATA_$(call part,1,$(1))) --steps 20 --out $(@D) \
	$(if $(filter gpt2,$(call part,1,$(1))),--vocabulary 50304) \
	$(if $(filter gpt2 resnet50,$(call part,1,$(1))),--optimizer adamw --decay 0.1 --tune) \
	$(patsubst %,--exclude '%',$(NOT_TUNED_$(call part,1,$(1))))
evidence-trainings: $(jobs_trainings)

$(EVIDENCE)/loss-curves/%.json: | $(VENV)/.quick
	$(BIN)/python tests/loss_curves.py $@ --batch $(call part,2,$*) --precision $(call part,3,$*)

$(EVIDENCE)/trainings/%/train.json: | $(VENV)/.quick
	$(call train,$*) --compare torch

# Needs two GPUs: a step on both with its exchange of gradients, and a step within a limit of memory.
evidence-gpus: $(call missing,$(LARGE_TRAININGS:%=$(EVIDENCE)/two-gpus/%/train.json) $(EVIDENCE)/memory-limit/unet-16-tf32/train.json)

$(EVIDENCE)/two-gpus/%/train.json: | $(VENV)/.quick
	$(call train,$*) --gpus 2

$(EVIDENCE)/memory-limit/%/train.json: | $(VENV)/.quick
	$(call train,$*) --memory 3320MB

# Counters of every case of the suite in turn, by Nsight Compute. A packed run is not continued.
evidence-counters: | $(VENV)/.quick
	test -e $(EVIDENCE)/counters/results.jsonl.xz || test -e $(EVIDENCE)/counters/results.jsonl \
		|| $(OPBENCH) run suites/counters.toml --out $(EVIDENCE)/counters
	test -e $(EVIDENCE)/counters/results.jsonl.xz || $(BIN)/python tests/evidence.py --uncounted $(EVIDENCE)/counters \
		| xargs -r -d '\n' -I CASE $(OPBENCH) profile CASE --run $(EVIDENCE)/counters

counters-cpu: $(VENV)/.quick  ## What the cpu backend counts for the cases of evidence-counters, into EVIDENCE; needs no GPU
	$(OPBENCH) run suites/counters.toml --backend cpu --out $(EVIDENCE)/counters-cpu
	$(BIN)/python tests/evidence.py $(EVIDENCE)/counters-cpu

# A command line and what it prints, in a file that exists only if the command succeeded.
logged = @mkdir -p $(@D); { echo "$$ $(1)"; PATH=$(abspath $(BIN)):$$PATH $(1); } > $@.part 2>&1 && mv $@.part $@ || { cat $@.part; exit 1; }

TUNE_gemm = $(SEARCH_gemm) --budget 30s
TUNE_convolution = opbench tune examples/tune/convolution_tunable.cu --case '(n=1,c=1,h=2048,w=2048,k=1,r=15,s=15,padding=7)' --budget 30s
TUNE_gemv = $(SEARCH_gemv) --budget 20s
TUNE_energy = $(SEARCH_gemv) --energy --budget 60s
TUNE_space = $(SEARCH_space) --strategy random --budget 240s
SEARCH_gemm = opbench tune examples/tune/gemm_tunable.cu --case '(m=2048,n=2048,k=2048)'
SEARCH_gemv = opbench tune examples/tune/gemv_tunable.cu --case '(m=16384,n=1,k=8192)'
SEARCH_space = $(SEARCH_gemm) --space examples/tune/gemm_space.toml
evidence-tune: $(patsubst %,$(EVIDENCE)/tune/%.txt,gemm convolution gemv energy space)

$(EVIDENCE)/tune/%.txt: | $(VENV)/.quick
	$(call logged,$(TUNE_$*) --out build/tune/$*)

evidence-torch: $(patsubst %,$(EVIDENCE)/torch/%.txt,overhead inference training)
TORCH_overhead := python examples/torch_overhead.py
TORCH_inference := python examples/resnet18.py
TORCH_training := python examples/resnet18.py --train

$(EVIDENCE)/torch/%.txt: | $(VENV)/.quick
	$(call logged,$(TORCH_$*))

evidence-ship: $(patsubst %,$(EVIDENCE)/ship/%.txt,lenet-1-f32 alexnet-1-bf16 unet-16-bf16)

$(EVIDENCE)/ship/%.txt: | $(VENV)/.quick
	rm -rf build/ship/$*
	$(call logged,opbench ship $(call part,1,$*) --batch $(call part,2,$*) --precision $(call part,3,$*) \
		--plan $(EVIDENCE)/networks/$*/plan.json --gpu $(notdir $(EVIDENCE)) --out build/ship/$* && $(MAKE) -C build/ship/$* test TIME=1)

# A right kernel and four that cheat: exit code 1 is a refusal, which is a verdict, too.
evidence-judge: $(patsubst %,$(EVIDENCE)/judge/%/verdict.json,my_relu softmax_remembers_its_input matmul_tests_one_old_output switches_by_size triggers_early)

$(EVIDENCE)/judge/%/verdict.json: | $(VENV)/.quick
	$(OPBENCH) judge $(wildcard examples/$*.cu tests/cheats/time/$*.cu) --out $(@D) || test $$? = 1

CARDS := h200
# $(1): a card. The runs of suites and networks of LADDERS on that card.
runs_on = $(filter-out %/ceilings %/networks %/trainings,$(filter reports/$(1)/%,$(LADDERS))) $(wildcard reports/$(1)/networks/*)

winners: $(CARDS:%=winners-%)  ## Write the winners files of the committed runs: what a network takes on these GPUs

winners-%: | $(VENV)/.quick
	$(OPBENCH) book $(call runs_on,$*) --out reports/$*/winners.json
	$(BIN)/python tests/evidence.py reports/$*

mutants: $(VENV)/.test  ## Bugs planted in shipped kernels: which of them `opbench check` misses (kept in build/)
	$(BIN)/python tests/mutants.py

sizes: $(VENV)/.quick  ## Print lines per package, the longest files and the size of the evidence
	@$(BIN)/python tests/sizes.py

clean:  ## Remove the environment, builds and caches of this tree (no run's results)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
