"""The public API: names, signatures and fields, frozen.

A change here is a change for everybody who uses abut: it belongs in CHANGELOG.md.
"""

import dataclasses
import inspect
import subprocess
import sys
from enum import Enum
from operator import attrgetter
from typing import Any

import pytest

import abut
import abut.agents
import abut.audit
import abut.eval_protocol
import abut.gateway
import abut.gym
import abut.inspect_ai
import abut.nemo_gym
import abut.openenv
import abut.ray
import abut.samplers.trl_server
import abut.samplers.vllm
import abut.strategies
import abut.testing
import abut.trl
import abut.trl_env
import abut.verifiers
from abut.removed import MOVED
from abut.samplers.settings import SamplingSettings

KNOWN = ("Action", "Delta", "Env", "Processor", "Seed")  # abut's own, or str
MODULES = {
    **{module.removeprefix("abut."): names for module, names in MOVED.items()},
    "agents": ("ClaudeCode", "Codex", "HarnessResult"),
    "audit": ("Audit", "audit"),
    "evaluation": ("PassAt", "PlayInterrupted"),
    "eval_protocol": abut.eval_protocol.__all__,
    "gateway": ("Gateway",),
    "samplers": (
        *MOVED["abut.samplers"],
        "ChatSampler",
        "ScriptedReplies",
        "TextSampler",
    ),
    "samplers.settings": ("SamplingSettings",),
    "samplers.trl_server": ("TRLServerSampler",),
    "samplers.vllm": ("VLLMColocateSampler", "VLLMServerSampler"),
    "gym": ("GymEnv",),
    "inspect_ai": abut.inspect_ai.__all__,
    "nemo_gym": abut.nemo_gym.__all__,
    "openenv": tuple(name for name in abut.openenv.__all__ if name != "InvalidAction"),
    "ray": abut.ray.__all__,
    "strategies": abut.strategies.__all__,
    "template": abut.template.__all__,
    "testing": abut.testing.__all__,
    "trl": abut.trl.__all__,
    "trl_env": tuple(name for name in abut.trl_env.__all__ if name not in KNOWN),
    "verifiers": abut.verifiers.__all__,
}
OPTIONAL = (
    "PIL",
    "aiohttp",
    "datasets",
    "eval_protocol",
    "hypothesis",
    "inspect_ai",
    "litellm",
    "ray",
    "tokenizers",
    "torch",
    "tqdm",
    "transformers",
    "trl",
    "verifiers",
    "websockets",
    "yaml",
)

# A class is its constructor where it has one, then its members; a dataclass is its fields.
TABLE = """
AbutError(Exception)
Agent (protocol)
  run(endpoint, task)
AgentResult
  reward
  extras = <class 'dict'>
  messages = None
  measured = True
  rewards = <class 'dict'>
  names = <class 'dict'>
AsyncEnv (protocol)
  alive
  reset(seed)
  reward
  step(action)
ChatTemplateProcessor(hf_tokenizer, *, tools=None, chat_template=None, images=None, \
**chat_template_kwargs)
  append_user_input(prompt)
  close_thinking(completion)
  close_token_id
  closing(messages=(), *, after=None)
  increment(messages)
  init_system_input(prompt)
  knows(messages=())
  opening(messages)
  parse_agent_output(completion)
  parse_tool_calls(action)
  report
  stop_token_ids
  thinking
  turn_parts(message)
  verdicts()
  with_stop_token_ids(ids)
  with_tools(tools, **chat_template_kwargs)
Columns(*, prompt_ids, completion_ids, logprobs, env_mask)
  completion_ids
  env_mask
  logprobs
  prompt_ids
Content(str)
Endpoint
  base_url
  api_key
  model
  rollout_id
  name = None
  train = True
  max_context_tokens = None
  anthropic_url
  calls
  codex_args()
  env(kind)
  gemini_url
  named(name, train=True)
Env (protocol)
  alive
  reset(seed)
  reward
  step(action)
EnvPool (protocol)
  lend(task)
Evaluation
  rollouts
  rewards
  successes
  environments = ()
  by_environment
  failed
  failures
  mean_reward
  mean_tokens
  mean_turns
  of(rollouts, rows, k, *, success=1.0, failed='leave_out')
  pass_at
  row_means
  standard_error
  stop_reasons
  to_dict()
  unscored
Image(data)
  data
  hash
  height
  of(value)
  pixels
  to_pil()
  to_png()
  width
InvalidAction(AbutError, ValueError)
PartsProcessor (protocol)
  close_token_id
  closing(messages=(), *, after=None)
  increment(messages)
  opening(messages)
  parse_agent_output(completion)
  stop_token_ids
Processor (protocol)
  append_user_input(prompt)
  init_system_input(prompt)
  parse_agent_output(completion)
Rollout
  rollout_id
  index
  columns = None
  provenance = ()
  prompt_ids = None
  images = ()
  branches = ()
  dropped_images = ()
  name = None
  session = None
  row_reward = None
  row_trained = True
  names = <class 'dict'>
  rewards = <class 'dict'>
  asked_by = ()
  teacher = None
  unscored_rows = 0
  reward = None
  measured = True
  turns = <class 'list'>
  turns_before = ()
  seams = <class 'list'>
  messages = <class 'list'>
  tools = ()
  control_spellings = <class 'dict'>
  stop_reason = <StopReason.ERROR: 'error'>
  error = None
  attempts = 1
  attempt_errors = <class 'list'>
  attempt_tracebacks = <class 'list'>
  seconds = 0.0
  extras = <class 'dict'>
  usage = <class 'dict'>
  client_rewrites = <class 'dict'>
  tool_choice_unmet = 0
  dropped_tokens
  failed
  main_row
  sampled_tokens
  step_rewards
  streams
  trainable
RolloutConfig
  max_turns = None
  max_calls = None
  max_rollout_tokens = None
  max_turn_tokens = None
  max_completion_tokens = None
  max_context_tokens = None
  reset_timeout_s = 120
  step_timeout_s = 60
  turn_timeout_s = 300
  rollout_timeout_s = 900
  retries = 1
  on_failure = 'unscored'
  max_failed_frac = 0.5
  reward = 'last'
  max_rollouts = None
  max_env_steps = 64
  max_requests = 256
  branch = None
  auxiliary = 'train'
  streams = ()
  log_every_s = None
  seed = 0
  max_env_turns
RolloutError(AbutError, RuntimeError)
Sample
  ids
  logprobs
  finish_reason
  stop_string = None
  model_version = None
  streams = <class 'dict'>
  in_words = False
  newest_version = None
Sampler (protocol)
  sample(request)
SamplerError(AbutError, RuntimeError)
Scaffold(str)
Seam
  canonical_ids
  drop
  exact
  ids
  kind
  merge
SeamError(AbutError, ValueError)
Stitched
  chains
  dropped
  transitions
TemplateError(AbutError, ValueError)
Tokenizer
  control_spellings(text)
  decode(ids)
  decode_bytes(ids)
  encode(text, *, added='parse')
  encode_batch(texts, *, added='parse')
  encode_parts(parts, *, at_start=True)
  from_file(path, *, control=None, textual=None)
  from_pretrained(source, *, control=None, textual=None)
  from_str(json, *, control=None, textual=None)
  is_additive(a, b, *, added='parse')
  profile()
  seam(a, b, *, added='parse')
  token_to_id(token)
  vocab_size
TokenizerError(AbutError, ValueError)
ToolCall
  name
  arguments
  id = None
Trajectory(tokenizer)
  append_parts(parts, *, provenance='env')
  append_sampled(ids, logprobs)
  append_text(text, *, added='text', provenance='env')
  columns()
  fork(at)
  ids
  logprobs
  provenance
  request()
  sampled_mask
  turns
__version__
agent(function=None, *, session_header=None)
collate(columns, *, pad_id)
evaluate(env, rows, *, success=1.0, failed='leave_out', k=1, **arguments)
parse_tool_calls(text, *, format, tools=None)
play(env, rows, *, sampler, tokenizer=None, sampling=None, k=1, config=None, processor=None, \
system_prompt=None, gateway=None, recorder=None)
stitch(calls, *, on_drift='error', tokenizer=None)
tool_env(functions=(), *, reward=None, mcp=None, state=None, on_malformed='feed_back', \
timeout_s=30.0, max_calls=16, max_result_chars=20000, format=None)
errors.ControlTokenError(AbutError, ValueError)
errors.EnvError(AbutError, RuntimeError)
errors.MissingExtraError(AbutError, ImportError)
errors.TrajectoryError(AbutError, ValueError)
parts.Part
records.JsonlRecorder(path)
  write(rollout, /, **extra)
  write_scores(records)
records.Page(text, rollouts, troubles=())
  save(path)
records.ParquetRecorder(path, *, rollouts_per_file=256, seconds_per_file=60.0)
  flush()
  write(rollout, /, **extra)
  write_scores(records)
records.read_records(path)
records.view(records, *, where='', without=(), tokenizer=None, images=None)
rollout.rollout.StopReason
  ENV_DONE = 'env_done'
  MAX_TURNS = 'max_turns'
  MAX_CALLS = 'max_calls'
  MAX_ROLLOUT_TOKENS = 'max_rollout_tokens'
  MAX_COMPLETION_TOKENS = 'max_completion_tokens'
  MAX_CONTEXT_TOKENS = 'max_context_tokens'
  EMPTY_SAMPLE = 'empty_sample'
  DEADLINE = 'deadline'
  STALE = 'stale'
  ERROR = 'error'
samplers.BatchSampler (protocol)
  sample_batch(requests)
samplers.SampleRequest
  prompt_ids
  max_tokens
  stop_token_ids
  seed
  rollout_id
  turn
  stop = ()
  images = ()
  never_token_ids = ()
  streams = ()
  messages = <class 'list'>
  tools = ()
  ids_of = None
  where
samplers.ScriptedSampler(script, *, logprob=..., delay_s=None)
  sample(request)
samplers.StreamSampler (protocol)
  sample_stream(turns)
samplers.ChatSampler(base_url, model, *, api_key=None, give_up_s=120.0, **settings)
  reply(messages, tools, settings)
samplers.ScriptedReplies(replies)
  max_context_tokens
  sample(request)
  takes_images
samplers.TextSampler (protocol)
  reply(messages, tools, settings)
tool_calls.MalformedCall
  start
  end
  error
  text
tool_calls.ParsedCalls
  content
  calls
  malformed
trajectory.PROVENANCE = ('prompt', 'env', 'scaffold', 'sampled', 'close')
trajectory.Merge
  left_ids
  left_text
  merged_ids
  right_ids
  right_text
trajectory.Transition
  call
  cause
  chain
  kind
  left
  parent
  right
  token
trajectory.Turn
  end
  start
agents.ClaudeCode(task, reward, cwd=None, *, model=None, args=(), max_calls=None, timeout_s=None, \
environ=None, command_prefix=(), program=None)
agents.Codex(task, reward, cwd=None, *, model=None, args=(), max_calls=None, timeout_s=None, \
environ=None, command_prefix=(), program=None)
agents.HarnessResult
  cwd
  exit_status
  answer
  transcript
audit.Audit
  source
  profile
  template = None
  refused = None
  seams = ()
  round_trips = ()
  content = None
  fuzz = None
  images = None
  as_dict()
  exact
  problems
audit.audit(source, *, template=None, template_kwargs=None, roles=('user', 'tool'), fuzz=0, seed=0)
evaluation.PassAt(counts)
evaluation.PlayInterrupted(message, rollouts)
eval_protocol.create_openenv_vllm_rollout_func(env_factory, prompt_builder, action_parser, \
vllm_base_url='http://localhost:8000', vllm_model='Qwen/Qwen2.5-7B', max_steps=None, *, \
completion_params=None, concurrency=None, processor_cls=None, processor_kwargs=None, \
env_path=None, env_client_cls=None, tasks=None, task_var=None, miniwob_url=None, \
docker_image='browsergym-env:latest', env_base_url=None, request_timeout_s=15.0, \
default_headers=None, provider=None, docker_port=None, env_vars=None, benchmark='miniwob', \
headless=True, viewport_width=1280, viewport_height=720, timeout_ms=10000, \
gateway=None)
eval_protocol.eval_test(test, *, name=None, kwargs=None, log='all', row_timeout_s=120.0)
eval_protocol.prune_logs(*, keep_steps, experiment_id=None)
gateway.Gateway(host='127.0.0.1', port=0, public_url=None, key=None, *, key_file=None, \
rewrites=('text_lost', 'stop_put_back', 'calls_as_text', 'code_again', 'empty_turn_left_out', \
'thinking_as_text', 'arguments_read'), \
unenforced='refuse', sampler=None, tokenizer=None, config=None, recorder=None, idle_s=600.0, \
agents_may_end=False, session_header=None, max_body_bytes=67108864)
  base_url
  end(rollout_id, reward=None, *, extras=None, rewards=None, names=None)
  endpoint(rollout_id)
  key
  sampling
  start()
  stop()
samplers.settings.SamplingSettings
  temperature = 1.0
  top_k = 0
  top_p = 1.0
  min_p = None
  repetition_penalty = 1.0
  generation_kwargs = <class 'dict'>
samplers.trl_server.TRLServerSampler(base_url, *, give_up_s=120.0, on_restart='resume', **sampling)
  sample(request)
samplers.vllm.VLLMColocateSampler(llm, *, awake=None, **sampling)
  max_context_tokens
  sample_stream(turns)
  takes_images
samplers.vllm.VLLMServerSampler(base_urls, *, model=None, endpoint='completions', api_key=None, \
give_up_s=120.0, on_restart='resume', **sampling)
  ask_for_adapters(name)
  forget(rollout_id)
  max_context_tokens
  sample(request)
  takes_images
  with_settings(**settings)
gym.GymEnv(make, *, observe=<class 'str'>, act=<class 'str'>, reset=None, on_invalid='tell', \
invalid_reward=0.0)
  bind(processor)
  tools
inspect_ai.inspect_task(task, *, task_args=None, model_roles=None, reward=None, values=None, \
sandbox=None, log_dir='logs', limit=None, sample_id=None, time_limit=None, name=None)
nemo_gym.NemoGym(head_url, *, name='nemo_gym', batch_timeout_s=None, check='all', judge=None)
  dataset(jsonl, *, agent=None, weights=None)
  run(endpoint, task)
  settle(played, tokenizer)
  start(gateway)
  stop()
openenv.Docker
  image
  replicas = 1
  environ = <class 'dict'>
  options = ()
  start_timeout_s = 300
openenv.OpenEnv(target, *, observe=None, act=None, history='auto', reset=None, tasks=(), \
reward=None, on_invalid='tell', on_error='fail', invalid_reward=0.0, max_sessions=None, \
reuse_sessions=True, headers=None, connect_timeout_s=60, session_timeout_s=300, \
idle_timeout_s=300, max_message_bytes=67108864)
  close()
  lend(task)
  list_tools()
openenv.Serve
  app
  replicas = 1
  python = None
  cwd = None
  environ = <class 'dict'>
  start_timeout_s = 120
openenv.call_tools(format, *, tools=None)
openenv.calls_of(trace)
openenv.tool_message(observation)
openenv.transcript(observation)
ray.RayPool(env, *, size, slots=16, start_timeout_s=60, address=None, **actor_options)
  close()
  lend(task)
strategies.conversations(tokenizer=None, *, max_turns=3, system=True, roles=('user',), \
stripped=False)
strategies.fragments(tokenizer=None, *, also=())
strategies.messages(tokenizer=None, *, roles=('user',), stripped=False)
strategies.partial_utf8(tokenizer=None, *, also=(), max_pieces=6)
strategies.parts(tokenizer=None, *, also=(), max_parts=6)
strategies.pieces(tokenizer=None, *, also=(), max_pieces=6)
strategies.recorded_calls(*, max_calls=9, vocab_size=3, drift=True)
strategies.texts(tokenizer=None, *, also=(), max_fragments=8)
template.ImageProcessor(hf_processor)
  argument_names
  expansion(image)
  media_token
  media_token_ids
  model_inputs(input_ids, attention_mask, rows)
  name
  never_token_ids
  placeholder
  spare_row()
  tensors(rows)
  types(input_ids)
testing.assert_additive(tokenizer, a, b)
testing.assert_appendable(hf_tokenizer, conversation, *, cut=(), tools=None, chat_template=None, \
**chat_template_kwargs)
testing.assert_exact_append(tokenizer, pieces, *, added='parse')
testing.native_tokenizer(tokenizer)
trl.AllRows
  abut_eval_rows
  abut_forward
  abut_image_columns
  abut_rows
  compute_loss(model, inputs, *args, **kwargs)
  take_rows(scoring)
  trains_images
trl.MainRows(*args, rollout_func=None, **kwargs)
  num_generations
  num_generations_eval
  reward_funcs
trl.ModelTeacher(model, *, temperature=1.0)
  open(student)
  score(ids, positions, top_k, name)
trl.Returns
  discount = 1.0
trl.ReverseKL
  teacher
  coef = 1.0
  credit = None
trl.ScoredConversation
  name
  reward
  turns
  before = ()
trl.ScoredRollout
  rollout_id
  reward
  advantage
  conversations
trl.ScoredTurn
  tokens
  reward = None
trl.Teacher (protocol)
  score(ids, positions, top_k, name)
trl.TeacherScores(ids, logprobs, drawn)
  drawn
  ids
  logprobs
trl.VllmTeacher(base_urls, *, models=None, api_key=None, give_up_s=300.0, max_requests=64)
  open(student)
  score(ids, positions, top_k, name)
  temperature
trl.env_reward(completions, *, env_reward=None, rollout_stats=(), log_metric=None, \
log_extra=None, **extras)
trl.extend(trainer)
trl.from_environment_factory(environment, *, tools=(), reward=None, on_malformed='end', \
timeout_s=30.0, max_calls=16, max_result_chars=None, format=None)
trl.make_distillation_worker(env, *, args, train_dataset, processing_class, teacher=None, \
rollouts_per_prompt=1, config=None, reward_funcs=None, processor=None, sampler='auto', \
base_urls=None, system_prompt=None, recorder=None, gateway=None, credit=None)
trl.make_rollout_func(env, *, config=None, processor=None, \
sampler='auto', system_prompt=None, recorder=None, record_images=None, gateway=None, credit=None)
trl.make_rollout_worker(env, *, args, train_dataset, processing_class, config=None, \
reward_funcs=..., processor=None, sampler='auto', base_urls=None, system_prompt=None, \
recorder=None, gateway=None, credit=None)
trl.no_reward(completions, *, measured=None, **columns)
trl.scored_only(reward_func)
trl_env.RolloutDecoder (protocol)
  generate(input_ids)
trl_env.RolloutDecoderFactory (protocol)
  make_decoder(trainer)
trl_env.Tokenizer (protocol)
  decode(token_list)
  encode(text)
  processing_class
trl_env.TransformerDecoderFactory(temperature, eos_token_set, max_completion_length)
  check_trainer(trainer)
  make_decoder(trainer)
trl_env.TransformerTokenizer(processing_class)
  decode(token_list)
  encode(text)
trl_env.Type1Processor(config)
  append_user_input(prompt)
  init_system_input(prompt)
  parse_agent_output(completion)
trl_env.Type1ProcessorConfig
  prefix_system
  suffix_system
  prefix_user
  suffix_user
  begin_answer
  end_answer
trl_env.VLLMDecoderFactory(temperature, eos_token_set, max_completion_length, \
gpu_memory_utilization=0.5, enable_sleep_mode=True)
  check_trainer(trainer)
trl_env.deepseekr1_processor
trl_env.gemma4_instruct_processor
trl_env.gemma4_processor
trl_env.make_reward_func()
trl_env.make_rollout_func(processor, tokenizer, decoder_factory, env_factory, system_prompt, \
max_conversation_length)
trl_env.make_rollout_func_mp(processor, tokenizer, decoder_factory, env_factory, system_prompt, \
max_conversation_length)
trl_env.qwen3_instruct_processor
trl_env.qwen3_processor
verifiers.verifiers_env(id_or_env, *, env=None, config=None, args=None, seats=None, train=None, \
harness=None, runtime=None, name=None)
"""


def test_the_public_api_is_the_table() -> None:
    found = [line for name in abut.__all__ for line in describe(name, getattr(abut, name))]
    for module, names in MODULES.items():
        for name in names:
            found += describe(f"{module}.{name}", attrgetter(f"{module}.{name}")(abut))
    assert found == TABLE.split("\n")[1:-1]


def test_the_table_notices_a_renamed_parameter_and_another_default() -> None:
    class Changed:
        def __init__(self, path: str, *, limit: int = 2) -> None: ...
        def read(self, size: int) -> None: ...

    class Renamed(Changed):
        def __init__(self, path: str, *, limit: int = 3) -> None: ...
        def read(self, count: int) -> None: ...

    assert describe("It", Changed) == ["It(path, *, limit=2)", "  read(size)"]
    assert describe("It", Renamed) == ["It(path, *, limit=3)", "  read(count)"]


def test_all_is_sorted_as_ruff_sorts_it_and_complete() -> None:
    public = {
        name
        for name, value in vars(abut).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public | {"__version__"} == set(abut.__all__)


@pytest.mark.parametrize(
    "field",
    [*dataclasses.fields(abut.RolloutConfig), *dataclasses.fields(SamplingSettings)],
    ids=lambda f: f.name,
)
def test_every_setting_has_a_help_text(field: "dataclasses.Field[Any]") -> None:
    assert field.metadata["help"].endswith(".")


def test_importing_abut_imports_nothing_optional() -> None:
    assert imported_by("import abut") == []


def test_importing_an_adapter_shows_that_this_would_be_seen() -> None:
    pytest.importorskip("torch")
    assert "torch" in imported_by("import abut.samplers.transformers")


def imported_by(statement: str) -> list[str]:
    """Which optional packages a fresh interpreter has imported after `statement`."""
    code = (
        f"{statement}; import sys; print(*(name for name in {OPTIONAL!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    return done.stdout.split()


def describe(name: str, value: Any) -> list[str]:
    """The lines of the table for one name."""
    if inspect.isroutine(value):
        return [name + signature(value)]
    if isinstance(value, tuple):
        return [f"{name} = {value!r}"]
    if not inspect.isclass(value):
        return [name]
    if issubclass(value, Exception | str) and not issubclass(value, Enum):
        return [f"{name}({', '.join(base.__name__ for base in value.__bases__)})"]
    if issubclass(value, Enum):
        return [name, *(f"  {member.name} = {member.value!r}" for member in value)]
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    lines = [name if fields else name + constructor(value)]
    shown = [field for field in fields if not field.name.startswith("_")]
    lines += [f"  {field.name}{default(field)}" for field in shown]
    members = {*vars(value), *getattr(value, "__annotations__", {})} - {f.name for f in fields}
    public = sorted(member for member in members if not member.startswith("_"))
    return lines + [f"  {member}{method(value, member)}" for member in public]


def constructor(cls: type) -> str:
    if getattr(cls, "_is_protocol", False):
        return " (protocol)"
    if not {"__init__", "__new__"} & {name for base in cls.__mro__[:-1] for name in vars(base)}:
        return ""
    return signature(cls)


def method(cls: type, member: str) -> str:
    raw = inspect.getattr_static(cls, member, None)
    if isinstance(raw, staticmethod):
        return signature(raw.__func__)
    if isinstance(raw, classmethod):
        return signature(raw.__func__, bound=True)
    return signature(raw, bound=True) if inspect.isroutine(raw) else ""


def signature(function: Any, *, bound: bool = False) -> str:
    """Names, kinds and defaults of the parameters, without annotations."""
    parameters = list(inspect.signature(function).parameters.values())[bound:]
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    simple = [p.replace(default=...) if inspect.isroutine(p.default) else p for p in plain]
    return str(inspect.Signature(simple)).replace("=Ellipsis", "=...")


def default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f" = {field.default_factory!r}"
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
