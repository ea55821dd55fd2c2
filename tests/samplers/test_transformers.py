"""Sampling in process: logprobs are those of the distribution that each token was drawn from."""

import copy
from collections.abc import Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.kit.training.forward_pass import worst

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from abut.errors import SamplerError  # noqa: E402
from abut.samplers.forward_passes import Batches, batches_of  # noqa: E402
from abut.samplers.sampler import SampleRequest  # noqa: E402
from abut.samplers.stop_strings import Spelled, StopStrings  # noqa: E402
from abut.samplers.transformers import TransformersSampler, _Draw  # noqa: E402

STOP = 505


def request(prompt: Sequence[int], *, seed: int = 0, max_tokens: int = 12) -> SampleRequest:
    return SampleRequest(np.asarray(prompt), max_tokens, (STOP,), seed, f"r{seed}", 0)


def some_requests(count: int = 6, **kwargs: Any) -> list[SampleRequest]:
    return [request(range(20, 24 + 3 * k), seed=k, **kwargs) for k in range(count)]


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> Any:
    return tiny_model().eval()


def sampler_of(model: Any, **kwargs: Any) -> TransformersSampler:
    return TransformersSampler(model, pad_token_id=503, **kwargs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"repetition_penalty": 1.3},
        {"temperature": 1.4, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_logprobs_are_those_of_the_filtered_distribution(model: Any, settings: Any) -> None:
    requests = some_requests()
    samples = sampler_of(model, **settings).sample_batch(requests)
    assert sum(len(sample.ids) for sample in samples) > 20
    assert worst(model, requests, samples, **settings) < 1e-3
    if settings:
        assert worst(model, requests, samples) > 1e-2, "the check notices the filters"


def test_settings_may_come_as_generation_kwargs(model: Any) -> None:
    named = sampler_of(model, top_k=5).sample_batch(some_requests())
    given = sampler_of(model, generation_kwargs={"top_k": 5}).sample_batch(some_requests())
    assert [s.ids.tolist() for s in named] == [s.ids.tolist() for s in given]


def test_a_filter_that_is_none_among_generation_kwargs_is_off(model: Any) -> None:
    plain = sampler_of(model).sample_batch(some_requests())
    off = sampler_of(model, top_k=1, generation_kwargs={"top_k": None})
    assert [s.ids.tolist() for s in plain] == [
        s.ids.tolist() for s in off.sample_batch(some_requests())
    ]


def test_the_models_own_generation_config_changes_nothing(
    tiny_model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model().eval()
    plain = sampler_of(model).sample_batch(some_requests())
    model.generation_config.update(
        do_sample=True, temperature=0.3, top_k=3, top_p=0.5, repetition_penalty=1.5, num_beams=2
    )
    again = sampler_of(model).sample_batch(some_requests())
    assert [s.ids.tolist() for s in plain] == [s.ids.tolist() for s in again]
    assert worst(model, some_requests(), again) < 1e-3
    assert not caplog.records


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.5}, {"top_p": 0.7}], ids=str)
def test_a_request_draws_the_same_alone_and_in_a_batch(model: Any, settings: Any) -> None:
    sampler = sampler_of(model, **settings)
    together = sampler.sample_batch(some_requests())
    for one, sample in zip(some_requests(), together, strict=True):
        (alone,) = sampler.sample_batch([one])
        assert alone.ids.tolist() == sample.ids.tolist()
        np.testing.assert_allclose(alone.logprobs, sample.logprobs, atol=1e-4)


def test_the_seed_alone_decides_the_draw(model: Any) -> None:
    def drawn(seed: int) -> list[int]:
        (sample,) = sampler_of(model).sample_batch([request(range(9), seed=seed)])
        return list(sample.ids.tolist())

    torch.manual_seed(1)
    first = drawn(5)
    torch.manual_seed(2)
    assert drawn(5) == first
    assert drawn(6) != first


def test_max_batch_changes_no_sample(model: Any) -> None:
    whole = sampler_of(model).sample_batch(some_requests())
    pieces = sampler_of(model, max_batch=2).sample_batch(some_requests())
    assert [s.ids.tolist() for s in whole] == [s.ids.tolist() for s in pieces]


def chi_square(logits: Any, scale: float = 1.0) -> float:
    """Of 40 000 draws of ids against the softmax of `logits * scale`."""
    draws = 40_000
    draw = _Draw(range(draws), "cpu")
    chosen = draw(None, logits.expand(draws, -1)).argmax(dim=-1)
    counts = torch.bincount(chosen, minlength=logits.shape[-1]).double()
    expected = torch.softmax(logits.double() * scale, dim=-1)[0] * draws
    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    return float(((counts - expected)[seen] ** 2 / expected[seen]).sum())


def test_a_draw_follows_the_softmax() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0, -torch.inf]])
    critical = 18.5  # 0.1 % at 4 degrees of freedom
    assert chi_square(logits) < critical
    assert chi_square(logits, scale=0.9) > critical, "the check notices another temperature"


def test_a_draw_gives_the_logprob_of_what_it_leaves() -> None:
    scores = torch.tensor([[0.5, 1.5, -torch.inf], [-torch.inf, 0.0, -torch.inf]])
    draw = _Draw([1, 2], "cpu")
    left = draw(None, scores)
    chosen = left.argmax(dim=-1)
    assert (left > -torch.inf).sum(dim=-1).tolist() == [1, 1]
    assert chosen[1] == 1
    right = torch.log_softmax(scores, dim=-1).gather(1, chosen[:, None])[:, 0]
    assert torch.equal(draw.logprobs[0], right)
    assert draw.logprobs[0][1] == 0


def test_each_request_keeps_its_own_budget(model: Any) -> None:
    requests = [request([1, 2], seed=1, max_tokens=1), request([1, 2], seed=2, max_tokens=9)]
    short, long = sampler_of(model).sample_batch(requests)
    assert (len(short.ids), short.finish_reason) == (1, "length")
    assert len(long.ids) == len(long.logprobs) > 1


def test_a_row_near_the_end_of_the_positions_does_not_break_its_batch() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=512, n_positions=32, n_embd=32, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = None
    sampler = sampler_of(GPT2LMHeadModel(config).eval())
    requests = [request(range(28), max_tokens=4), request(range(4), seed=1, max_tokens=28)]
    together = sampler.sample_batch(requests)
    assert [len(sample.ids) for sample in together] == [4, 28]
    for one, sample in zip(requests, together, strict=True):
        assert sampler.sample_batch([one])[0].ids.tolist() == sample.ids.tolist()


def test_a_prompt_with_a_token_beyond_the_embedding_is_named(model: Any) -> None:
    """As where tokens were added to a tokenizer, and the model was not resized."""
    rows = model.get_input_embeddings().num_embeddings
    with pytest.raises(SamplerError) as raised:
        sampler_of(model).sample_batch([request([1, rows - 1]), request([1, rows, 2])])
    assert str(raised.value).partition(": ")[2] == (
        f"the prompt has token {rows}, but the model's embedding has only {rows} rows, so "
        "model and tokenizer do not match\nhint: call "
        "model.resize_token_embeddings(len(tokenizer)) before creating the trainer"
    )


def test_a_sample_ends_with_its_first_stop_token(tiny_model: Any) -> None:
    model = tiny_model().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(0.05)  # every token about equally likely
    stop = tuple(range(0, 512, 8))
    requests = [SampleRequest(np.arange(4), 30, stop, seed, "r", 0) for seed in range(12)]
    samples = sampler_of(model).sample_batch(requests)
    assert "stop" in {sample.finish_reason for sample in samples}
    for sample in samples:
        inside = np.isin(sample.ids, stop)
        assert not inside[:-1].any()
        assert (sample.finish_reason == "stop") == bool(inside[-1])
        assert len(sample.ids) == len(sample.logprobs)


def test_a_row_ends_on_its_own_stop_tokens_alone(tiny_model: Any) -> None:
    """Also beside a request that stops on what the row samples, and where the model's own would."""
    model = tiny_model().eval()
    model.generation_config.eos_token_id = list(range(512))
    prompt = np.arange(4)
    (alone,) = sampler_of(model).sample_batch([SampleRequest(prompt, 12, (), 1, "r", 0)])
    assert len(alone.ids) == 12
    near, far = sorted(np.unique(alone.ids, return_index=True)[1])[1:3]
    stops = [(), (int(alone.ids[near]),), (), (int(alone.ids[far]), 511)]
    requests = [SampleRequest(prompt, 12, stop, 1, "r", 0) for stop in stops]
    together = sampler_of(model).sample_batch(requests)
    for length, sample in zip((12, near + 1, 12, far + 1), together, strict=True):
        assert sample.ids.tolist() == alone.ids[:length].tolist()
        np.testing.assert_allclose(sample.logprobs, alone.logprobs[:length], atol=1e-4)
    assert worst(model, requests, together) < 1e-3


def test_the_model_comes_back_as_it_was(tiny_model: Any) -> None:
    model, entered = tiny_model().train(), []

    @contextmanager
    def unwrap() -> Any:
        entered.append("in")
        yield model
        entered.append("out")

    sampler = sampler_of(model, unwrap=unwrap)
    with sampler:
        sampler.sample_batch(some_requests(2))
        sampler.sample_batch(some_requests(2))
        assert not model.training
    assert model.training
    assert entered == ["in", "out"]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"generation_kwargs": {"num_beams": 4}},
            "generation_kwargs['num_beams']=4: not possible, because training needs each token "
            "drawn by itself with its own logprob\nhint: remove the setting",
        ),
        (
            {"generation_kwargs": {"do_sample": False}},
            "generation_kwargs['do_sample']=False: not possible, because training needs each "
            "token drawn by itself with its own logprob\nhint: remove the setting",
        ),
        (
            {"generation_kwargs": {"typical_p": 0.9}},
            "generation_kwargs['typical_p']=0.9: this sampler cannot apply this setting\nhint: "
            "remove it; RolloutConfig sets limits, and top_k, top_p and min_p are the filters",
        ),
        (
            {"generation_kwargs": {"max_new_tokens": 5}},
            "generation_kwargs['max_new_tokens']=5: this sampler cannot apply this setting\n"
            "hint: remove it; RolloutConfig sets limits, and top_k, top_p and min_p are the "
            "filters",
        ),
        (
            {"temperature": 0.0},
            "temperature=0.0: must be more than 0, because at 0 every logprob is 0 and the "
            "policy cannot learn",
        ),
    ],
)
def test_settings_that_would_falsify_logprobs_are_refused(kwargs: Any, text: str) -> None:
    with pytest.raises(ValueError, match=": ") as raised:
        sampler_of(None, **kwargs)
    assert str(raised.value) == text


def test_neutral_generation_kwargs_are_taken(model: Any) -> None:
    kwargs = {"num_beams": 1, "do_sample": True, "typical_p": None, "no_repeat_ngram_size": 2}
    (sample,) = sampler_of(model, generation_kwargs=kwargs).sample_batch([request([1, 2])])
    pairs = list(zip(sample.ids[:-1].tolist(), sample.ids[1:].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_tokens_that_were_not_drawn_are_an_error(model: Any) -> None:
    class Eager:
        device, training = "cpu", False
        config = SimpleNamespace(get_text_config=lambda: None)

        def modules(self) -> list[Any]:
            return []

        def eval(self) -> None: ...

        def get_input_embeddings(self) -> None: ...

        def generate(self, *, input_ids: Any, logits_processor: Any, **_: Any) -> Any:
            logits_processor(input_ids, torch.zeros(1, 512))
            return torch.cat([input_ids, torch.ones(1, 2, dtype=torch.int64)], dim=1)

    with pytest.raises(SamplerError) as raised:
        sampler_of(Eager()).sample_batch([request([1, 2])])
    assert str(raised.value) == "generate returned tokens (1, 2), logprobs (1, 1)"


def test_a_row_ends_on_its_own_stop_strings_alone(tiny_model: Any, tokenizer: Any) -> None:
    """Beside rows with others and with none; inside a token, and over several."""
    model = tiny_model().eval()
    prompt = np.arange(4)

    def sampled(*stops: tuple[str, ...]) -> Any:
        requests = [SampleRequest(prompt, 24, (), 1, "r", 0, stop) for stop in stops]
        return sampler_of(model, tokenizer=tokenizer).sample_batch(requests)

    (alone,) = sampled(())
    pieces = [tokenizer.decode_bytes([id_]) for id_ in alone.ids.tolist()]
    text = b"".join(pieces)
    long = next(k for k in range(4, 20) if len(pieces[k]) > 2 and pieces[k].isascii())
    inside = pieces[long][1:2].decode()
    over = (pieces[long - 1][-1:] + pieces[long] + pieces[long + 1][:1]).decode(errors="ignore")
    rows = sampled((inside,), (), (over, "never said"), ("never said",))
    for sample, stop in zip(rows, (inside, None, over, None), strict=True):
        assert sample.stop_string == stop
        assert sample.ids.tolist() == alone.ids[: len(sample.ids)].tolist()
        np.testing.assert_allclose(sample.logprobs, alone.logprobs[: len(sample.ids)], atol=1e-4)
        if stop is None:
            assert (len(sample.ids), sample.finish_reason) == (24, "length")
            continue
        assert sample.finish_reason == "stop"
        spoken = b"".join(pieces[: len(sample.ids)])
        assert stop.encode() in spoken
        assert stop.encode() not in b"".join(pieces[: len(sample.ids) - 1])
    assert text


def test_stop_strings_need_a_tokenizer(tiny_model: Any) -> None:
    request = SampleRequest(np.arange(4), 4, (), 1, "r0", 2, ("x",))
    with pytest.raises(SamplerError, match=r"rollout r0, turn 2 has stop strings, but this"):
        sampler_of(tiny_model().eval()).sample_batch([request])


def test_an_id_beyond_the_tokenizer_costs_no_other_row_its_stop_string(tokenizer: Any) -> None:
    """A model's embedding may have more rows than there are tokens."""
    (id_,) = tokenizer.encode("a").tolist()
    stops = StopStrings(tokenizer, [("a",), ("a",)])
    ids = torch.tensor([[tokenizer.vocab_size + 5], [id_]])
    assert stops(ids, None).tolist() == [False, True]
    assert stops.spelled == [None, Spelled("a", 1)]


def ignoring_the_mask(model: Any) -> Any:
    """The same model, which reads the padding of its batches."""
    other, forward = copy.deepcopy(model), type(model).forward

    def blind(self: Any, input_ids: Any = None, attention_mask: Any = None, **named: Any) -> Any:
        named.pop("position_ids", None)
        return forward(self, input_ids=input_ids, **named)

    other.__class__ = type("Blind", (type(model),), {"forward": blind})
    return other


def rwkv() -> Any:
    """A model that ignores the mask, and whose rows mix where it has a state."""
    from transformers import RwkvConfig, RwkvForCausalLM

    torch.manual_seed(0)
    config = RwkvConfig(vocab_size=600, hidden_size=32, num_hidden_layers=2, context_length=128)
    return RwkvForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["equal", "one"])
def test_a_model_that_reads_padding_samples_in_a_batch_what_it_samples_alone(
    model: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    blind = ignoring_the_mask(model) if kind == "equal" else rwkv()
    requests = some_requests() + some_requests()
    together = sampler_of(blind).sample_batch(requests)
    for one, sample in zip(requests, together, strict=True):
        (alone,) = sampler_of(blind).sample_batch([one])
        assert sample.ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(sample.logprobs, alone.logprobs, atol=1e-4)
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("abut")]
    if kind == "equal":
        assert said.startswith("Blind reads left padding as text: in a batch, a prompt's logprobs")
        assert "abut therefore samples prompts of equal length only" in said
    else:
        assert said.startswith("RwkvForCausalLM mixes rows")
        assert "abut therefore samples one prompt at a time" in said


def test_a_model_that_masks_padding_is_batched_as_before(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    batches, nats = batches_of(model, 503)
    assert (batches, nats < 1e-3) == (Batches.ANY, True)
    sampler_of(model).sample_batch(some_requests())
    assert not [r for r in caplog.records if r.name.startswith("abut")]
