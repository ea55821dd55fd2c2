# Each target installs what it needs. `.ci/run` runs some of them with test data.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
SCRIPTS := scripts/release
RUST := $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v '^rust/fuzz') Cargo.toml Cargo.lock
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests and the demo never download from a hub.
export HF_HUB_OFFLINE := 1
FUZZ_SECONDS ?= 60
SOAK_STEPS ?= 10000
SOAK_APPENDS ?= 50000000
# By default glibc keeps up to 64 MB of freed memory per arena, which would hide the memory that the
# process itself holds.
SOAK := ABUT_SOAK=1 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072
# No recipe starts another make, and cargo would look for its job server.
unexport MAKEFLAGS MFLAGS
# The tests start hundreds of Python processes, and where this is set each compiles the sources again:
# one of the benchmarks' took 5.8 instead of 4.8 seconds of CPU time.
unexport PYTHONDONTWRITEBYTECODE

TRL_VERSIONS := 0.29.1 1.0.0 1.8.0 1.11.0 1.12.0 1.14.0 1.16.0
# Chat clients and harnesses as users install them. They cannot share one environment, because they
# need different versions of openai and mcp, and OpenHands needs Python 3.12.
PYTHON_312 := $(shell $(PYTHON) scripts/find_python.py 3.12)
AGENT_CLIENTS := openai-3 litellm crewai coding dialects harnesses vision $(PYTHON_312:%=openhands)
# Versions of verifiers, each in its own environment, because version 0.4 changed the API.
VERIFIERS_VERSIONS := 0.1.14 0.3.1 0.4.0

.PHONY: setup build check check-rust check-python docs test test-rust test-python test-python-first test-python-second test-random test-soak test-vllm test-gpu test-openenv test-agents test-eval-protocol test-verifiers test-harbor test-inspect test-mcp test-ray test-browser test-nemo-gym test-nodes test-trl-matrix test-deepspeed test-docs demo demo-images bench bench-gpu bench-core fuzz fuzz-coverage wheel

setup: $(VENV)/deps.stamp

build: $(VENV)/build.stamp $(VENV)/deps.stamp

# Building needs only maturin, so it does not wait until the other packages are downloaded.
$(VENV)/build.stamp: $(VENV)/maturin.stamp pyproject.toml $(RUST)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

check: check-rust check-python docs

check-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

check-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
# Without its configuration, stubtest reads torch and transformers too: 100 s of CPU time instead of 17.
	$(BIN)/python -m mypy.stubtest abut._native --concise --mypy-config-file pyproject.toml

# The documentation site, in site/. It fails on a broken link, and on any resource of another site.
docs: build .venv-docs/deps.stamp
	$(BIN)/python -m scripts.docs.build --zensical .venv-docs/bin/zensical

test: test-rust test-python

# Property tests use the same examples each time, so that the result depends only on the commit;
# `make fuzz` and `make test-random` try new examples.
test-rust:
	PROPTEST_RNG_SEED=0 cargo test --workspace --locked --quiet

# `make --jobs=2` runs these two halves in parallel. Move a folder if one of them ends much later.
FIRST_HALF := tests/template tests/tool_calls tests/benchmarks tests/demo tests/trl \
	tests/test_examples.py tests/test_packaging.py

test-python: test-python-first test-python-second

test-python-first: build
	$(BIN)/pytest $(FIRST_HALF)

test-python-second: build
	$(BIN)/pytest $(FIRST_HALF:%=--ignore=%)

test-random: build
	cargo test --workspace --locked --quiet
	ABUT_RANDOM=1 $(BIN)/pytest -m hypothesis

# 50 batches in which three of ten environments fail, more seeds, and every edit of the recorded
# histories; then a day of training in SOAK_STEPS steps, in a process of its own because it compares
# memory; then SOAK_APPENDS appends to random tokenizers.
test-soak: build
	$(SOAK) $(BIN)/pytest --timeout 3600 tests/rollout/test_faults.py tests/rollout/test_pace.py tests/gateway/test_recordings.py tests/gateway/test_dialect_recordings.py
	$(SOAK) ABUT_SOAK_STEPS=$(SOAK_STEPS) $(BIN)/pytest --timeout 10800 tests/rollout/test_soak.py
	ABUT_FUZZ_APPENDS=$(SOAK_APPENDS) cargo test --locked -p abut-core --test append -- --ignored --nocapture

# Eval Protocol installs pytest-asyncio, which warns if it is not configured.
NO_ASYNCIO := -p no:asyncio

# A real vLLM server on the CPU: the first run downloads 6 GB and takes some minutes.
test-vllm: build .venv-vllm/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=python .venv-vllm/bin/python -m pytest $(NO_ASYNCIO) \
		-m vllm tests/real_vllm

# An NVIDIA GPU: without one, this fails at once. Two GPUs run all tests; with one, those that need two
# are skipped.
test-gpu: build .venv-gpu/deps.stamp
	ABUT_GPU=cuda PYTHONPATH=$(abspath python) .venv-gpu/bin/python -m pytest -m gpu -rs tests/gpu

# Run the documentation pages that train, as a reader would; this takes minutes.
test-docs: build
	ABUT_DOCS=1 $(BIN)/pytest -m docs tests/docs

test-openenv: build .venv-openenv/deps.stamp
	ABUT_OPENENV_PYTHON=$(abspath .venv-openenv/bin/python) $(BIN)/pytest -m openenv

# Ignore the warnings of the chat clients, because abut cannot fix them.
test-agents: $(AGENT_CLIENTS:%=test-agents-%)
	@$(if $(PYTHON_312),,echo "skipping the tests of OpenHands: they need Python 3.12")

$(AGENT_CLIENTS:%=test-agents-%): test-agents-%: build .venv-agents/%/deps.stamp
	ABUT_AGENT_CLIENTS=$* PYTHONPATH=$(abspath python) .venv-agents/$*/bin/python -m pytest -W ignore \
		-m agents tests/gateway/clients $(CLIENT_TESTS)

# Test the extras that install these programs, from the wheel.
test-agents-coding: CLIENT_TESTS := tests/test_packaging.py

# Eval Protocol imports litellm, which downloads prices unless this variable is set. If Debian's chromium
# is installed, the tests open the pages of `ep logs` with it.
test-eval-protocol: build .venv-eval-protocol/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=$(abspath python) .venv-eval-protocol/bin/python -m pytest \
		-W ignore -m eval_protocol tests/eval_protocol

# ABUT_VERIFIERS_ENVIRONMENTS is the folder `environments` of a checkout of verifiers, and the tests play
# those environments too; without it these tests are skipped.
test-verifiers: $(VERIFIERS_VERSIONS:%=test-verifiers-%)

$(VERIFIERS_VERSIONS:%=test-verifiers-%): test-verifiers-%: build .venv-verifiers/%/deps.stamp
	PYTHONPATH=$(abspath python) .venv-verifiers/$*/bin/python -m pytest -W ignore -m verifiers tests/verifiers

# Trials without Docker. Needs Linux, root for namespaces, and Debian's tmux.
test-harbor: build .venv-harbor/deps.stamp .venv-agents/coding/deps.stamp .venv-agents/harnesses/deps.stamp
	ABUT_PROGRAMS=$(abspath .venv-agents) PYTHONPATH=$(abspath python) .venv-harbor/bin/python -m pytest \
		-W ignore -m harbor tests/harbor

# Inspect and its packages raise warnings about each other.
test-inspect: build .venv-inspect/deps.stamp
	PYTHONPATH=$(abspath python) .venv-inspect/bin/python -m pytest -W ignore -m inspect_ai tests/inspect_ai

# Servers of the Model Context Protocol, as users install them.
test-mcp: build .venv-mcp/deps.stamp
	ABUT_DOCS=1 PYTHONPATH=$(abspath python) .venv-mcp/bin/python -m pytest -W ignore -m mcp \
		tests/tools/mcp tests/docs/test_tools_tutorial.py

# The tests run in .venv, because abut does not import NeMo Gym.
test-nemo-gym: build .venv-nemo-gym/deps.stamp
	ABUT_NEMO_GYM=$(abspath .venv-nemo-gym) $(BIN)/pytest -m "not nodes" tests/nemo_gym

# Network namespaces stand for the nodes of a cluster. Needs Linux and root.
test-nodes: build .venv-nemo-gym/deps.stamp
	ABUT_NEMO_GYM=$(abspath .venv-nemo-gym) $(BIN)/pytest -m nodes tests/nemo_gym

# Test the page of `abut view`, with records of a real demo run, and the documentation in Debian's chromium
# (apt-get install chromium, and fonts-noto-color-emoji for the emoji).
test-browser: build docs .venv-browser/deps.stamp
	ABUT_DEMO_PYTHON=$(abspath $(BIN)/python) PYTHONPATH=$(abspath python) .venv-browser/bin/python -m pytest \
		-m browser tests/records/browser tests/docs/browser

# A small cluster of three nodes on this machine, with its own address; the tests stop it at the end.
test-ray: build .venv-ray/deps.stamp
	PYTHONPATH=$(abspath python) .venv-ray/bin/python -m pytest -m ray tests/ray \
		tests/test_slurm_train.py tests/test_ray_parts.py tests/benchmarks/test_environments_row.py

test-trl-matrix: $(TRL_VERSIONS:%=test-trl-%)

# Rows with images, for model families whose processors do not need torchvision in any version of
# transformers.
IMAGE_CASES := llava or qwen2_5_vl or adapter or pieces

test-trl-%: build .venv-trl/%/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True ABUT_TRL_VERSION=$* PYTHONPATH=python \
		.venv-trl/$*/bin/python -m pytest $(NO_ASYNCIO) \
		tests/trl_matrix tests/trl/test_ranks.py tests/trl/test_all_rows.py tests/trl/test_row_trainer.py \
		tests/trl/test_row_credit.py tests/trl/test_row_ranks.py tests/trl/test_reverse_kl.py \
		tests/trl/test_distillation_loss.py tests/trl/test_distillation_worker.py \
		tests/trl/test_distillation_training.py \
		tests/trl/test_distillation_trainer.py
	LITELLM_LOCAL_MODEL_COST_MAP=True ABUT_TRL_VERSION=$* PYTHONPATH=python \
		.venv-trl/$*/bin/python -m pytest $(NO_ASYNCIO) \
		tests/trl/test_image_rows.py -k "$(IMAGE_CASES)"
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=python .venv-trl/$*/bin/python -m pytest \
		-W ignore -m eval_protocol tests/eval_protocol/test_rollout_func.py

# Two ranks on a CPU, with ZeRO-2 and ZeRO-3.
test-deepspeed: build .venv-deepspeed/deps.stamp
	PYTHONPATH=$(abspath python) .venv-deepspeed/bin/python -m pytest -m deepspeed tests/trl/test_row_ranks.py \
		tests/trl/test_image_ranks.py tests/docs/test_several_gpus.py

# ---- Environments. Each is a folder `.venv-…` with a stamp that is newer than its requirements.
# uv installs them, because pip does not support overrides.

INSTALL = $(@D)/bin/pip install --quiet uv && UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(@D)/bin/uv pip install \
	--quiet --python $(@D)/bin/python $(patsubst %,--override %,$(filter %/override.txt,$^)) \
	$(patsubst %,--requirement %,$(filter-out %/override.txt,$^))
CLEAR = --clear

%/deps.stamp:
	$(PYTHON) -m venv $(CLEAR) $(@D)
	$(INSTALL)
	touch $@

# Not cleared, because CI has already installed torch there.
$(VENV)/maturin.stamp: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt maturin uv
	touch $@

$(VENV)/deps.stamp: pyproject.toml $(VENV)/maturin.stamp
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(BIN)/uv pip install --quiet --python $(BIN)/python \
		--constraint constraints.txt --requirement pyproject.toml --extra trl --extra vllm --extra openenv --extra dev
	touch $@

# vLLM pins its own versions of torch and transformers.
.venv-vllm/deps.stamp: tests/real_vllm/requirements.txt tests/real_vllm/override.txt
.venv-vllm/deps.stamp: export UV_COMPILE_BYTECODE := 1
.venv-gpu/deps.stamp: tests/gpu/requirements.txt
# Servers of the openenv package; abut itself does not need it.
.venv-openenv/deps.stamp: tests/openenv/servers/requirements.txt
# Eval Protocol installs a hundred packages, and a pytest plugin that every test run would load.
.venv-eval-protocol/deps.stamp: tests/eval_protocol/requirements.txt
$(VERIFIERS_VERSIONS:%=.venv-verifiers/%/deps.stamp): .venv-verifiers/%/deps.stamp: tests/verifiers/%.txt
.venv-verifiers/0.1.14/deps.stamp: tests/verifiers/override.txt
.venv-harbor/deps.stamp: tests/harbor/requirements.txt
.venv-harbor/deps.stamp: PYTHON = $(or $(PYTHON_312),$(error harbor needs Python 3.12, which is not installed))
.venv-inspect/deps.stamp: tests/inspect_ai/requirements.txt
.venv-mcp/deps.stamp: tests/tools/mcp/requirements.txt
.venv-browser/deps.stamp: tests/records/browser/requirements.txt
.venv-docs/deps.stamp: scripts/docs/requirements.txt
# Do not compile the extensions of DeepSpeed.
.venv-deepspeed/deps.stamp: tests/trl/deepspeed/requirements.txt
.venv-deepspeed/deps.stamp: export DS_BUILD_OPS := 0
.venv-ray/deps.stamp: tests/ray/requirements.txt
$(AGENT_CLIENTS:%=.venv-agents/%/deps.stamp): .venv-agents/%/deps.stamp: \
	tests/gateway/clients/requirements.txt tests/gateway/clients/%.txt
$(patsubst %,.venv-agents/%/deps.stamp,coding dialects harnesses openhands vision): \
	tests/gateway/clients/trainer.txt
.venv-agents/openhands/deps.stamp: PYTHON = $(PYTHON_312)
# Each version of TRL that abut supports. uv links shared files, so seven environments are hardly larger
# than one.
$(TRL_VERSIONS:%=.venv-trl/%/deps.stamp): .venv-trl/%/deps.stamp: \
	tests/trl_matrix/requirements.txt tests/trl_matrix/trl-%.txt
# The tools that build and audit releases are pinned with hashes.
$(RELEASE_VENV)/deps.stamp: $(SCRIPTS)/tools.txt
$(RELEASE_VENV)/deps.stamp: INSTALL = $(RELEASE_BIN)/pip install --quiet --require-hashes --requirement $<

# NeMo Gym's servers, each version in its own environment; 0.7.0 only if Python 3.13 is installed.
.venv-nemo-gym/deps.stamp: scripts/nemo_gym_env.py
	$(PYTHON) $< --required 0.4.0 $(@D)/0.4.0
	$(PYTHON) $< 0.7.0 $(@D)/0.7.0
	touch $@

ENVIRONMENTS := vllm gpu openenv eval-protocol harbor inspect mcp nemo-gym browser ray deepspeed
.PHONY: $(ENVIRONMENTS:%=%-env)
$(ENVIRONMENTS:%=%-env): %-env: .venv-%/deps.stamp

demo: build
	$(BIN)/abut demo

demo-images: build
	$(BIN)/python examples/find_square_cpu.py

# The page shows all rows at full size, so it is not written with flags other than --strict.
bench: build
	$(BIN)/python -m benchmarks --peers-env .venv-bench $(if $(filter-out --strict,$(BENCH_FLAGS)),,--write docs/background/performance.md --json docs/background/performance.json) $(BENCH_FLAGS)
	$(if $(filter-out --strict,$(BENCH_FLAGS)),,$(BIN)/python -m scripts.write_scale docs/background/performance.json docs/background/scale.md)

# Training steps on an NVIDIA GPU, by abut and by TRL's own loop.
bench-gpu: build .venv-gpu/deps.stamp
	PYTHONPATH=$(abspath python) .venv-gpu/bin/python -m benchmarks.gpu --json bench-gpu.json

bench-core:
	cargo bench --locked -p abut-core

# Two runs of FUZZ_SECONDS each; ABUT_FUZZ_APPENDS and ABUT_FUZZ_SEED make the second reproducible.
fuzz:
	ABUT_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --locked -p abut-core --test fuzz -- --ignored --nocapture
	ABUT_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --locked -p abut-core --test append -- --ignored --nocapture

# Needs cargo-fuzz, and a nightly toolchain or RUSTC_BOOTSTRAP=1 with FUZZ_FLAGS='-s none'.
fuzz-coverage:
	cargo fuzz run --fuzz-dir rust/fuzz $(FUZZ_FLAGS) append -- -max_total_time=$(FUZZ_SECONDS)

# ---- Releases. The tools that build and audit them are pinned with hashes, in a separate environment.
.PHONY: licences audit audit-rust audit-python check-workflows test-oldest-rust test-oldest-light test-oldest-trl test-oldest-ray release-tools release-check

# The wheel, built like the release for this platform, and the sdist.
wheel: $(RELEASE_VENV)/deps.stamp
	rm -rf dist
	$(RELEASE_BIN)/python $(SCRIPTS)/build_wheel.py
	$(RELEASE_BIN)/maturin sdist --out dist

licences:
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py) $(PYTHON) $(SCRIPTS)/third_party_licenses.py

# Reading known vulnerabilities needs the network. Install cargo-deny with
# `cargo install --locked cargo-deny`.
audit: audit-rust audit-python

audit-rust:
	cargo deny --locked check
	cd rust/fuzz && cargo deny --locked --config ../../deny.toml check advisories sources
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py) $(PYTHON) $(SCRIPTS)/third_party_licenses.py --check

# Also audit the dependencies of the packages that constraints.txt pins.
audit-python: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
		--output-file $(RELEASE_VENV)/audited.txt constraints.txt
	$(RELEASE_BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off \
		--requirement $(RELEASE_VENV)/audited.txt
	$(RELEASE_BIN)/pip-audit --strict --disable-pip --progress-spinner off --requirement $(SCRIPTS)/tools.txt

# With a GitHub token (GH_TOKEN), zizmor also checks that the pinned commits are in their repositories.
check-workflows: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/zizmor $(if $(GH_TOKEN),,--offline) --strict-collection .github

test-oldest-rust:
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py --oldest) PROPTEST_RNG_SEED=0 \
		CARGO_TARGET_DIR=target/oldest-rust cargo test --workspace --locked --quiet

# The oldest versions that the extras allow: extras without torch, extras with torch, and Ray.
test-oldest-light test-oldest-trl test-oldest-ray: test-oldest-%: wheel
	$(RELEASE_BIN)/python $(SCRIPTS)/oldest.py $* dist/*.whl

# Pin the newest versions of the packages in tools.in, with their hashes.
release-tools: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
		--custom-compile-command "make release-tools" --output-file $(SCRIPTS)/tools.txt $(SCRIPTS)/tools.in

# All release checks that can run on one machine. PYTHONS lists interpreters that are not on PATH;
# CHECK_JOBS is the number of checks that run at once.
CHECK_JOBS ?= 1
release-check: wheel
	$(RELEASE_BIN)/python $(SCRIPTS)/check.py --jobs $(CHECK_JOBS) --pythons "$(PYTHONS)"
