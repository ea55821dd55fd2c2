# Everything is in .venv; each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST := $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v '^rust/fuzz') Cargo.toml Cargo.lock
# Data for tests that lies beside the checkout, where it does.
DATA := $(abspath ../shared/data)
ifneq ($(wildcard $(DATA)/tokenizers),)
export ABUT_TOKENIZERS ?= $(DATA)/tokenizers
endif
ifneq ($(wildcard $(DATA)/vllm),)
export ABUT_VLLM_REPLIES ?= $(DATA)/vllm
endif
ifneq ($(wildcard $(DATA)/nemo_gym),)
export ABUT_RECORDINGS ?= $(DATA)/nemo_gym
endif
ifneq ($(wildcard $(DATA)/clients),)
export ABUT_CLIENTS ?= $(DATA)/clients
endif
ifneq ($(wildcard $(DATA)/nemo_gym_runs),)
export ABUT_NEMO_GYM_RUNS ?= $(DATA)/nemo_gym_runs
endif
ifneq ($(wildcard $(DATA)/eval_protocol),)
export ABUT_EVAL_PROTOCOL ?= $(DATA)/eval_protocol
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests and the demo never need a hub.
export HF_HUB_OFFLINE := 1
FUZZ_SECONDS ?= 60
# No make runs below this one, and cargo would look for its job server.
unexport MAKEFLAGS

# vLLM pins a torch and a transformers of its own. uv installs, since pip knows no overrides, into an
# environment that has pip, which vLLM's /server_info asks for what is installed.
VLLM_VENV := .venv-vllm

.PHONY: setup build check check-rust check-python test test-rust test-python test-python-long test-python-rest test-random test-soak test-vllm test-openenv test-agents eval-protocol-env test-eval-protocol ray-env test-ray browser-env test-browser nemo-gym-env test-nemo-gym test-nodes test-trl-matrix demo bench bench-core fuzz fuzz-coverage wheel

setup: $(VENV)/deps.stamp

build: $(VENV)/build.stamp

$(VENV)/deps.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python scripts/install_requirements.py --constraint constraints.txt trl vllm openenv dev
	touch $@

$(VENV)/build.stamp: $(VENV)/deps.stamp $(RUST)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

# The two languages need nothing of each other: `make --jobs=2` has Rust compiled while pip installs.
check: check-rust check-python

check-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

check-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest abut._native --concise

test: test-rust test-python

# Properties are tested with the same examples each time, so that a commit passes or does not;
# `make fuzz` and `make test-random` look for others.
test-rust:
	PROPTEST_RNG_SEED=0 cargo test --workspace --locked --quiet

# In two halves, which `make --jobs=2` runs side by side: the first starts processes and trains models.
LONG_TESTS := tests/audit tests/benchmarks tests/cli tests/core tests/demo tests/test_examples.py \
	tests/test_packaging.py

test-python: test-python-long test-python-rest

test-python-long: build
	$(BIN)/pytest $(LONG_TESTS)

test-python-rest: build
	$(BIN)/pytest $(LONG_TESTS:%=--ignore=%)

test-random: build
	cargo test --workspace --locked --quiet
	ABUT_RANDOM=1 $(BIN)/pytest -m hypothesis

# Rollouts for minutes: 50 batches in which three environments of ten fail, more seeds, and every edit
# of the recorded histories. glibc keeps
# up to 64 MB of freed memory for each of its arenas, which would hide what the process itself holds.
test-soak: build
	ABUT_SOAK=1 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072 $(BIN)/pytest --timeout 3600 tests/rollout/test_faults.py tests/rollout/test_pace.py tests/gateway/test_recordings.py

# Eval Protocol brings pytest-asyncio, which warns where nobody has set it up.
NO_ASYNCIO := -p no:asyncio

# A real vLLM server on the CPU: 6 GB and some minutes the first time.
test-vllm: build $(VLLM_VENV)/deps.stamp
	PYTHONPATH=python $(VLLM_VENV)/bin/python -m pytest $(NO_ASYNCIO) -m vllm tests/real_vllm

$(VLLM_VENV)/deps.stamp: tests/real_vllm/requirements.txt tests/real_vllm/override.txt
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(VLLM_VENV)/bin/uv pip install --quiet --compile-bytecode \
		--python $(VLLM_VENV)/bin/python --override tests/real_vllm/override.txt \
		--requirement tests/real_vllm/requirements.txt
	touch $@

# Servers of the openenv package run in an environment of their own; abut needs none of it.
OPENENV := .venv-openenv

$(OPENENV)/deps.stamp: tests/openenv/servers/requirements.txt
	$(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/pip install --quiet --requirement $<
	touch $@

test-openenv: build $(OPENENV)/deps.stamp
	ABUT_OPENENV_PYTHON=$(abspath $(OPENENV)/bin/python) $(BIN)/pytest -m openenv

# Chat clients as people install them. No environment has all: they want an openai and an mcp of
# their own. What they warn of is not ours to mend.
AGENT_CLIENTS := openai-3 litellm crewai
AGENT_VENV := .venv-agents

test-agents: $(AGENT_CLIENTS:%=test-agents-%)

$(AGENT_CLIENTS:%=test-agents-%): test-agents-%: build $(AGENT_VENV)/%/deps.stamp
	ABUT_AGENT_CLIENTS=$* PYTHONPATH=python $(AGENT_VENV)/$*/bin/python -m pytest -W ignore \
		-m agents tests/gateway/clients

$(AGENT_VENV)/%/deps.stamp: tests/gateway/clients/%.txt tests/gateway/clients/requirements.txt
	$(PYTHON) -m venv --clear $(AGENT_VENV)/$*
	$(AGENT_VENV)/$*/bin/pip install --quiet uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(AGENT_VENV)/$*/bin/uv pip install --quiet \
		--python $(AGENT_VENV)/$*/bin/python --requirement tests/gateway/clients/requirements.txt \
		--requirement $<
	touch $@

# Eval Protocol brings a hundred packages, and a pytest plugin that every run would load, and that
# imports litellm, which looks prices up unless it is told not to. Debian's chromium, where there is
# one, opens the pages of `ep logs`.
EVAL_PROTOCOL := .venv-eval-protocol

eval-protocol-env: $(EVAL_PROTOCOL)/deps.stamp

test-eval-protocol: build $(EVAL_PROTOCOL)/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=$(abspath python) $(EVAL_PROTOCOL)/bin/python -m pytest \
		-W ignore -m eval_protocol tests/eval_protocol

$(EVAL_PROTOCOL)/deps.stamp: tests/eval_protocol/requirements.txt
	$(PYTHON) -m venv --clear $(EVAL_PROTOCOL)
	$(EVAL_PROTOCOL)/bin/pip install --quiet uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(EVAL_PROTOCOL)/bin/uv pip install --quiet \
		--python $(EVAL_PROTOCOL)/bin/python --requirement $<
	touch $@

# NeMo Gym's servers, each version in an environment of its own: 0.7.0 only where there is a Python
# 3.13. The tests run in ours, since abut imports nothing of it.
NEMO_GYM := .venv-nemo-gym

nemo-gym-env: $(NEMO_GYM)/deps.stamp

test-nemo-gym: build $(NEMO_GYM)/deps.stamp
	ABUT_NEMO_GYM=$(abspath $(NEMO_GYM)) $(BIN)/pytest -m "not nodes" tests/nemo_gym

# The nodes of a cluster are network namespaces here: needs Linux, and root.
test-nodes: build $(NEMO_GYM)/deps.stamp
	ABUT_NEMO_GYM=$(abspath $(NEMO_GYM)) $(BIN)/pytest -m nodes tests/nemo_gym

$(NEMO_GYM)/deps.stamp: scripts/nemo_gym_env.py
	$(PYTHON) $< --required 0.4.0 $(NEMO_GYM)/0.4.0
	$(PYTHON) $< 0.7.0 $(NEMO_GYM)/0.7.0
	touch $@

# The page of `abut view` in Debian's chromium (apt-get install chromium, and fonts-noto-color-emoji for
# the emoji), with the records of a demo that is really run.
BROWSER := .venv-browser

browser-env: $(BROWSER)/deps.stamp

test-browser: build $(BROWSER)/deps.stamp
	ABUT_DEMO_PYTHON=$(abspath $(BIN)/python) PYTHONPATH=$(abspath python) $(BROWSER)/bin/python -m pytest \
		-m browser tests/records/browser

$(BROWSER)/deps.stamp: tests/records/browser/requirements.txt
	$(PYTHON) -m venv --clear $(BROWSER)
	$(BROWSER)/bin/pip install --quiet --requirement $<
	touch $@

# A cluster of three nodes in this machine, on its own address: small, and gone when the tests are.
RAY := .venv-ray

ray-env: $(RAY)/deps.stamp

test-ray: build $(RAY)/deps.stamp
	PYTHONPATH=$(abspath python) $(RAY)/bin/python -m pytest -m ray tests/ray \
		tests/test_slurm_train.py tests/test_ray_parts.py tests/benchmarks/test_environments_row.py

$(RAY)/deps.stamp: tests/ray/requirements.txt
	$(PYTHON) -m venv --clear $(RAY)
	$(RAY)/bin/pip install --quiet uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(RAY)/bin/uv pip install --quiet \
		--python $(RAY)/bin/python --requirement $<
	touch $@

# Each version of TRL that abut takes, in an environment of its own. uv links what they share, so
# seven of them are hardly larger than one.
TRL_VERSIONS := 0.29.1 1.0.0 1.8.0 1.11.0 1.12.0 1.14.0 1.16.0
TRL_VENV := .venv-trl

test-trl-matrix: $(TRL_VERSIONS:%=test-trl-%)

test-trl-%: build $(TRL_VENV)/%/deps.stamp
	ABUT_TRL_VERSION=$* PYTHONPATH=python $(TRL_VENV)/$*/bin/python -m pytest $(NO_ASYNCIO) \
		tests/trl_matrix tests/trl/test_ranks.py
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=python $(TRL_VENV)/$*/bin/python -m pytest \
		-W ignore -m eval_protocol tests/eval_protocol/test_rollout_func.py

$(TRL_VENV)/%/deps.stamp: tests/trl_matrix/trl-%.txt tests/trl_matrix/requirements.txt
	$(PYTHON) -m venv --clear $(TRL_VENV)/$*
	$(TRL_VENV)/$*/bin/pip install --quiet uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(TRL_VENV)/$*/bin/uv pip install --quiet \
		--python $(TRL_VENV)/$*/bin/python --requirement tests/trl_matrix/requirements.txt \
		--requirement $<
	touch $@

.PRECIOUS: $(TRL_VENV)/%/deps.stamp $(AGENT_VENV)/%/deps.stamp

demo: build
	$(BIN)/abut demo

# The page is of all rows at full size: with flags other than --strict nothing is written.
bench: build
	$(BIN)/python -m benchmarks --peers-env .venv-bench $(if $(filter-out --strict,$(BENCH_FLAGS)),,--write docs/performance.md --json docs/performance.json) $(BENCH_FLAGS)
	$(if $(filter-out --strict,$(BENCH_FLAGS)),,$(BIN)/python scripts/write_scale.py docs/performance.json docs/scale.md)

bench-core:
	cargo bench --locked -p abut-core

# For as long as FUZZ_SECONDS says, twice; ABUT_FUZZ_APPENDS and ABUT_FUZZ_SEED fix the second.
fuzz:
	ABUT_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --locked -p abut-core --test fuzz -- --ignored --nocapture
	ABUT_FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --locked -p abut-core --test append -- --ignored --nocapture

# Needs cargo-fuzz, and with it a nightly toolchain, or RUSTC_BOOTSTRAP=1 and FUZZ_FLAGS='-s none'.
fuzz-coverage:
	cargo fuzz run --fuzz-dir rust/fuzz $(FUZZ_FLAGS) append -- -max_total_time=$(FUZZ_SECONDS)

# ---- Releases. What builds and audits them is pinned with its hashes, in an environment of its own.
.PHONY: licences audit audit-rust audit-python check-workflows test-oldest-rust test-oldest-light test-oldest-trl test-oldest-ray release-tools release-check

RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
SCRIPTS := scripts/release

$(RELEASE_VENV)/deps.stamp: $(SCRIPTS)/tools.txt
	$(PYTHON) -m venv --clear $(RELEASE_VENV)
	$(RELEASE_BIN)/pip install --quiet --require-hashes --requirement $<
	touch $@

# As the release builds it for this platform, and the sdist.
wheel: $(RELEASE_VENV)/deps.stamp
	rm -rf dist
	$(RELEASE_BIN)/python $(SCRIPTS)/build_wheel.py
	$(RELEASE_BIN)/maturin sdist --out dist

licences:
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py) $(PYTHON) $(SCRIPTS)/third_party_licenses.py

# Known weaknesses need the network. cargo-deny is Rust's: `cargo install --locked cargo-deny`.
audit: audit-rust audit-python

audit-rust:
	cargo deny --locked check
	cd rust/fuzz && cargo deny --locked --config ../../deny.toml check advisories sources
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py) $(PYTHON) $(SCRIPTS)/third_party_licenses.py --check

# With all that what constraints.txt pins needs itself.
audit-python: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
		--output-file $(RELEASE_VENV)/audited.txt constraints.txt
	$(RELEASE_BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off \
		--requirement $(RELEASE_VENV)/audited.txt
	$(RELEASE_BIN)/pip-audit --strict --disable-pip --progress-spinner off --requirement $(SCRIPTS)/tools.txt

# With a token of GitHub (GH_TOKEN) zizmor also asks where the pinned commits are.
check-workflows: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/zizmor $(if $(GH_TOKEN),,--offline) --strict-collection .github

test-oldest-rust:
	RUSTUP_TOOLCHAIN=$$($(PYTHON) $(SCRIPTS)/rust.py --oldest) PROPTEST_RNG_SEED=0 \
		CARGO_TARGET_DIR=target/oldest-rust cargo test --workspace --locked --quiet

# The oldest version of each package that the extras allow: those without torch, those with it, Ray.
test-oldest-light test-oldest-trl test-oldest-ray: test-oldest-%: wheel
	$(RELEASE_BIN)/python $(SCRIPTS)/oldest.py $* dist/*.whl

# Pins the newest versions of what tools.in names, with their hashes.
release-tools: $(RELEASE_VENV)/deps.stamp
	$(RELEASE_BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
		--custom-compile-command "make release-tools" --output-file $(SCRIPTS)/tools.txt $(SCRIPTS)/tools.in

# All of the release that can be done on one machine. PYTHONS names interpreters that are not on PATH;
# with CHECK_JOBS more than one check runs at once.
CHECK_JOBS ?= 1
release-check: wheel
	$(RELEASE_BIN)/python $(SCRIPTS)/check.py --jobs $(CHECK_JOBS) --pythons "$(PYTHONS)"
