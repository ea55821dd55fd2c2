# Each target sets up what it needs. `.ci/run` runs some of them with the data that tests can use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RELEASE_VENV := .venv-release
RELEASE_BIN := $(RELEASE_VENV)/bin
SCRIPTS := scripts/release
RUST := $(shell find rust -name '*.rs' -o -name Cargo.toml | grep -v '^rust/fuzz') Cargo.toml Cargo.lock
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests and the demo never need a hub.
export HF_HUB_OFFLINE := 1
FUZZ_SECONDS ?= 60
# No make runs below this one, and cargo would look for its job server.
unexport MAKEFLAGS

TRL_VERSIONS := 0.29.1 1.0.0 1.8.0 1.11.0 1.12.0 1.14.0 1.16.0
# Chat clients and harnesses as people install them. No environment has all: they want an openai and
# an mcp of their own, and OpenHands a Python 3.12.
PYTHON_312 := $(shell $(PYTHON) scripts/find_python.py 3.12)
AGENT_CLIENTS := openai-3 litellm crewai coding dialects harnesses vision $(PYTHON_312:%=openhands)
# Versions of verifiers, each in an environment of its own: the API of 0.4 is not that of the others.
VERIFIERS_VERSIONS := 0.1.14 0.3.1 0.4.0

.PHONY: setup build check check-rust check-python docs test test-rust test-python test-python-long test-python-rest test-random test-soak test-vllm test-openenv test-agents test-eval-protocol test-verifiers test-harbor test-inspect test-mcp test-ray test-browser test-nemo-gym test-nodes test-trl-matrix test-deepspeed test-docs demo demo-images bench bench-core fuzz fuzz-coverage wheel

setup: $(VENV)/deps.stamp

build: $(VENV)/build.stamp

$(VENV)/build.stamp: $(VENV)/deps.stamp $(RUST)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@

# The two languages need nothing of each other: `make --jobs=2` has Rust compiled while pip installs.
check: check-rust check-python docs

check-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

check-python: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest abut._native --concise

# The documentation site, in site/: fails on a broken link, and on all that it would load from outside.
docs: build .venv-docs/deps.stamp
	$(BIN)/python -m scripts.docs.build --zensical .venv-docs/bin/zensical

test: test-rust test-python

# Properties are tested with the same examples each time, so that a commit passes or does not;
# `make fuzz` and `make test-random` look for others.
test-rust:
	PROPTEST_RNG_SEED=0 cargo test --workspace --locked --quiet

# In two halves, which `make --jobs=2` runs side by side: the first starts processes and trains models.
LONG_TESTS := tests/audit tests/benchmarks tests/cli tests/core tests/demo tests/trl tests/test_examples.py \
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
	ABUT_SOAK=1 MALLOC_TRIM_THRESHOLD_=131072 MALLOC_MMAP_THRESHOLD_=131072 $(BIN)/pytest --timeout 3600 tests/rollout/test_faults.py tests/rollout/test_pace.py tests/gateway/test_recordings.py tests/gateway/test_dialect_recordings.py

# Eval Protocol brings pytest-asyncio, which warns where nobody has set it up.
NO_ASYNCIO := -p no:asyncio

# A real vLLM server on the CPU: 6 GB and some minutes the first time.
test-vllm: build .venv-vllm/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=python .venv-vllm/bin/python -m pytest $(NO_ASYNCIO) \
		-m vllm tests/real_vllm

# Pages of the documentation that train, run as a reader runs them: minutes.
test-docs: build
	ABUT_DOCS=1 $(BIN)/pytest -m docs tests/docs

test-openenv: build .venv-openenv/deps.stamp
	ABUT_OPENENV_PYTHON=$(abspath .venv-openenv/bin/python) $(BIN)/pytest -m openenv

# What the chat clients warn of is not ours to fix.
test-agents: $(AGENT_CLIENTS:%=test-agents-%)
	@$(if $(PYTHON_312),,echo "tests of OpenHands are left out: they need a Python 3.12")

$(AGENT_CLIENTS:%=test-agents-%): test-agents-%: build .venv-agents/%/deps.stamp
	ABUT_AGENT_CLIENTS=$* PYTHONPATH=$(abspath python) .venv-agents/$*/bin/python -m pytest -W ignore \
		-m agents tests/gateway/clients $(CLIENT_TESTS)

# The extras that bring these programs, from the wheel.
test-agents-coding: CLIENT_TESTS := tests/test_packaging.py

# Eval Protocol imports litellm, which looks prices up unless it is told not to. Debian's chromium, if it
# is installed, opens the pages of `ep logs`.
test-eval-protocol: build .venv-eval-protocol/deps.stamp
	LITELLM_LOCAL_MODEL_COST_MAP=True PYTHONPATH=$(abspath python) .venv-eval-protocol/bin/python -m pytest \
		-W ignore -m eval_protocol tests/eval_protocol

# ABUT_VERIFIERS_ENVIRONMENTS names the folder `environments` of a checkout of verifiers, which are
# played too; without it these tests are skipped.
test-verifiers: $(VERIFIERS_VERSIONS:%=test-verifiers-%)

$(VERIFIERS_VERSIONS:%=test-verifiers-%): test-verifiers-%: build .venv-verifiers/%/deps.stamp
	PYTHONPATH=$(abspath python) .venv-verifiers/$*/bin/python -m pytest -W ignore -m verifiers tests/verifiers

# Trials without Docker: needs Linux, and root, for namespaces; and Debian's tmux.
test-harbor: build .venv-harbor/deps.stamp .venv-agents/coding/deps.stamp .venv-agents/harnesses/deps.stamp
	ABUT_PROGRAMS=$(abspath .venv-agents) PYTHONPATH=$(abspath python) .venv-harbor/bin/python -m pytest \
		-W ignore -m harbor tests/harbor

# Inspect and its packages warn among themselves.
test-inspect: build .venv-inspect/deps.stamp
	PYTHONPATH=$(abspath python) .venv-inspect/bin/python -m pytest -W ignore -m inspect_ai tests/inspect_ai

# Servers of the Model Context Protocol, as people install them.
test-mcp: build .venv-mcp/deps.stamp
	ABUT_DOCS=1 PYTHONPATH=$(abspath python) .venv-mcp/bin/python -m pytest -W ignore -m mcp \
		tests/tools/mcp tests/docs/test_tools_tutorial.py

# The tests run in our environment, because abut imports nothing of NeMo Gym.
test-nemo-gym: build .venv-nemo-gym/deps.stamp
	ABUT_NEMO_GYM=$(abspath .venv-nemo-gym) $(BIN)/pytest -m "not nodes" tests/nemo_gym

# The nodes of a cluster are network namespaces here: needs Linux, and root.
test-nodes: build .venv-nemo-gym/deps.stamp
	ABUT_NEMO_GYM=$(abspath .venv-nemo-gym) $(BIN)/pytest -m nodes tests/nemo_gym

# The page of `abut view`, with the records of a demo that is really run, and the documentation, in
# Debian's chromium (apt-get install chromium, and fonts-noto-color-emoji for the emoji).
test-browser: build docs .venv-browser/deps.stamp
	ABUT_DEMO_PYTHON=$(abspath $(BIN)/python) PYTHONPATH=$(abspath python) .venv-browser/bin/python -m pytest \
		-m browser tests/records/browser tests/docs/browser

# A cluster of three nodes in this machine, on its own address: small, and gone when the tests are.
test-ray: build .venv-ray/deps.stamp
	PYTHONPATH=$(abspath python) .venv-ray/bin/python -m pytest -m ray tests/ray \
		tests/test_slurm_train.py tests/test_ray_parts.py tests/benchmarks/test_environments_row.py

test-trl-matrix: $(TRL_VERSIONS:%=test-trl-%)

# Rows with images, of families whose processors no version of transformers gives torchvision to.
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

# Two ranks on a CPU, under ZeRO-2 and ZeRO-3.
test-deepspeed: build .venv-deepspeed/deps.stamp
	PYTHONPATH=$(abspath python) .venv-deepspeed/bin/python -m pytest -m deepspeed tests/trl/test_row_ranks.py \
		tests/trl/test_image_ranks.py tests/docs/test_several_gpus.py

# ---- Environments. Each has a folder `.venv-…`, and a stamp in it that is newer than what it is made from.
# uv installs, since pip knows no overrides.

INSTALL = $(@D)/bin/pip install --quiet uv && UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(@D)/bin/uv pip install \
	--quiet --python $(@D)/bin/python $(patsubst %,--override %,$(filter %/override.txt,$^)) \
	$(patsubst %,--requirement %,$(filter-out %/override.txt,$^))
CLEAR = --clear

%/deps.stamp:
	$(PYTHON) -m venv $(CLEAR) $(@D)
	$(INSTALL)
	touch $@

$(VENV)/deps.stamp: pyproject.toml constraints.txt
# CI has put a torch into it.
$(VENV)/deps.stamp: CLEAR =
$(VENV)/deps.stamp: INSTALL = $(BIN)/python scripts/install_requirements.py --constraint constraints.txt \
	trl vllm openenv dev

# vLLM pins a torch and a transformers of its own.
.venv-vllm/deps.stamp: tests/real_vllm/requirements.txt tests/real_vllm/override.txt
.venv-vllm/deps.stamp: export UV_COMPILE_BYTECODE := 1
# Servers of the openenv package; abut needs none of it.
.venv-openenv/deps.stamp: tests/openenv/servers/requirements.txt
# Eval Protocol brings a hundred packages, and a pytest plugin that every run would load.
.venv-eval-protocol/deps.stamp: tests/eval_protocol/requirements.txt
$(VERIFIERS_VERSIONS:%=.venv-verifiers/%/deps.stamp): .venv-verifiers/%/deps.stamp: tests/verifiers/%.txt
.venv-verifiers/0.1.14/deps.stamp: tests/verifiers/override.txt
.venv-harbor/deps.stamp: tests/harbor/requirements.txt
.venv-harbor/deps.stamp: PYTHON = $(or $(PYTHON_312),$(error harbor needs Python 3.12, which is not here))
.venv-inspect/deps.stamp: tests/inspect_ai/requirements.txt
.venv-mcp/deps.stamp: tests/tools/mcp/requirements.txt
.venv-browser/deps.stamp: tests/records/browser/requirements.txt
.venv-docs/deps.stamp: scripts/docs/requirements.txt
# DeepSpeed compiles nothing here.
.venv-deepspeed/deps.stamp: tests/trl/deepspeed/requirements.txt
.venv-deepspeed/deps.stamp: export DS_BUILD_OPS := 0
.venv-ray/deps.stamp: tests/ray/requirements.txt
$(AGENT_CLIENTS:%=.venv-agents/%/deps.stamp): .venv-agents/%/deps.stamp: \
	tests/gateway/clients/requirements.txt tests/gateway/clients/%.txt
$(patsubst %,.venv-agents/%/deps.stamp,coding dialects harnesses openhands vision): \
	tests/gateway/clients/trainer.txt
.venv-agents/openhands/deps.stamp: PYTHON = $(PYTHON_312)
# Each version of TRL that abut takes. uv links what they share, so seven are hardly larger than one.
$(TRL_VERSIONS:%=.venv-trl/%/deps.stamp): .venv-trl/%/deps.stamp: \
	tests/trl_matrix/requirements.txt tests/trl_matrix/trl-%.txt
# What builds and audits releases is pinned with its hashes.
$(RELEASE_VENV)/deps.stamp: $(SCRIPTS)/tools.txt
$(RELEASE_VENV)/deps.stamp: INSTALL = $(RELEASE_BIN)/pip install --quiet --require-hashes --requirement $<

# NeMo Gym's servers, each version in an environment of its own: 0.7.0 only where there is a Python 3.13.
.venv-nemo-gym/deps.stamp: scripts/nemo_gym_env.py
	$(PYTHON) $< --required 0.4.0 $(@D)/0.4.0
	$(PYTHON) $< 0.7.0 $(@D)/0.7.0
	touch $@

ENVIRONMENTS := vllm openenv eval-protocol harbor inspect mcp nemo-gym browser ray deepspeed
.PHONY: $(ENVIRONMENTS:%=%-env)
$(ENVIRONMENTS:%=%-env): %-env: .venv-%/deps.stamp

demo: build
	$(BIN)/abut demo

demo-images: build
	$(BIN)/python examples/find_square_cpu.py

# The page is of all rows at full size: with flags other than --strict nothing is written.
bench: build
	$(BIN)/python -m benchmarks --peers-env .venv-bench $(if $(filter-out --strict,$(BENCH_FLAGS)),,--write docs/background/performance.md --json docs/background/performance.json) $(BENCH_FLAGS)
	$(if $(filter-out --strict,$(BENCH_FLAGS)),,$(BIN)/python -m scripts.write_scale docs/background/performance.json docs/background/scale.md)

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
