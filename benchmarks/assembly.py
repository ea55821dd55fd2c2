"""What assembly costs: encoding one text, and a conversation that grows turn by turn.

    ABUT_TOKENIZERS=folder python benchmarks/assembly.py

Both sides do the same work in the same process, one after the other in every round, and their
results are compared before anything is timed. Without ABUT_TOKENIZERS/qwen3 the tokenizer that
ships with abut is taken: its vocabulary of 512 is too small for figures that mean anything.
"""

import os
import platform
import statistics
import sysconfig
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import abut

MEGABYTE = 1_000_000
ENCODE_ROUNDS = 7
TALK_ROUNDS = 5
TURNS = 30
DEMO = Path(abut.__file__).parent / "demo" / "assets"

MIXED = (
    "分词器把文本切成片段,然后把每个片段变成数字。\n"
    "トークンは文字ではない。だから、つなぎ目が問題になる。\n"
    "토큰은 글자가 아니다.\n"
    "Größe, naïve, Ærø, Ελλάδα, Москва, עברית, العربية, ไทย\n"
    "🙂🙃 👩🏽‍🚀👨‍👩‍👧‍👦 🇯🇵🇩🇪 ✨🚀 a\u0301 e\u0308 \u200d\r\n"
)


def main() -> None:
    """Print one table."""
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()  # the texts are longer than the context of any model
    given = Path(os.environ.get("ABUT_TOKENIZERS", "")) / "qwen3"
    folder = given if (given / "tokenizer.json").is_file() else DEMO
    hf_tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer = abut.Tokenizer.from_pretrained(hf_tokenizer)
    print(
        f"abut {abut.__version__} (encoder {tokenizer.profile()['encoder']}), "
        f"tokenizers {version('tokenizers')}, transformers {version('transformers')}, "
        f"Python {platform.python_version()}\n"
        f"{processor_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"tokenizer {folder.name if folder is given else 'demo'}, {tokenizer.vocab_size} ids\n"
    )
    print(f"{'':<44}{'median':>10}{'min':>10}{'max':>10}")
    encode(tokenizer, hf_tokenizer)
    converse(tokenizer, hf_tokenizer)


def encode(tokenizer: abut.Tokenizer, hf_tokenizer: Any) -> None:
    """Tokens of 1 MB of text, control tokens parsed on both sides."""
    text = mixed_text()
    backend = hf_tokenizer.backend_tokenizer

    def ours() -> list[int]:
        ids: list[int] = tokenizer.encode(text).tolist()
        return ids

    def theirs() -> list[int]:
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    count = same(ours(), theirs())
    size = len(text.encode())
    print(f"encode {size / MEGABYTE:.2f} MB of source and mixed scripts, {count} tokens, equal")
    compare(ENCODE_ROUNDS, {"abut": ours, "tokenizers": theirs}, megabytes=size / MEGABYTE)


def converse(tokenizer: abut.Tokenizer, hf_tokenizer: Any) -> None:
    """The requests of a conversation: each turn appended, or all rendered and encoded again."""
    processor = abut.ChatTemplateProcessor(hf_tokenizer)
    lines = [line for line in mixed_text().splitlines() if line.strip()]
    texts = ["\n".join(lines[i * 12 : i * 12 + 12]).strip() for i in range(2 * TURNS)]
    prompts, answers = texts[::2], texts[1::2]
    samples = [tokenizer.encode(answer + processor.report.close) for answer in answers]

    def appended() -> list[list[int]]:
        trajectory = abut.Trajectory(tokenizer)
        requests = []
        for turn, prompt in enumerate(prompts):
            message = [{"role": "user", "content": prompt}]
            if turn == 0:
                trajectory.append_parts(processor.opening(message), provenance="prompt")
            else:
                trajectory.append_parts(processor.increment(message))
            request = trajectory.request()
            requests.append(request)
            sampled = samples[turn]
            trajectory.append_sampled(sampled, np.full(len(sampled), -0.5, dtype=np.float32))
        return [request.tolist() for request in requests]

    def rendered() -> list[list[int]]:
        messages: list[dict[str, str]] = []
        requests = []
        for prompt, answer in zip(prompts, answers, strict=True):
            messages.append({"role": "user", "content": prompt})
            requests.append(
                hf_tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_dict=False
                )
            )
            messages.append({"role": "assistant", "content": answer})
        return requests

    count = same(appended()[-1], rendered()[-1])
    same(appended(), rendered())
    print(f"requests of {TURNS} turns, the last one of {count} tokens, all {TURNS} equal")
    compare(TALK_ROUNDS, {"abut, appended": appended, "apply_chat_template": rendered})


def compare(
    rounds: int, sides: dict[str, Callable[[], object]], *, megabytes: float | None = None
) -> None:
    """Time all sides in turn, in the same rounds; print the median and the spread of each."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - began)
    for name, taken in seconds.items():
        median, rate = statistics.median(taken), ""
        if megabytes is not None:
            rate = f"   {megabytes / median:.1f} MB/s"
        columns = "".join(f"{1000 * s:>7.1f} ms" for s in (median, min(taken), max(taken)))
        print(f"  {name:<42}{columns}{rate}")
    first, second = (statistics.median(taken) for taken in seconds.values())
    print(f"  ratio of the medians: {second / first:.2f}\n")


def same(ours: list[Any], theirs: list[Any]) -> int:
    """How many there are.

    Raises:
        SystemExit: they differ: times of different results mean nothing.
    """
    if ours != theirs:
        pairs = enumerate(zip(ours, theirs, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
        raise SystemExit(f"the results differ, first at {first} ({len(ours)}, {len(theirs)} long)")
    return len(ours)


def mixed_text() -> str:
    """About 1 MB: source text of Python's standard library, other scripts every few lines."""
    pieces: list[str] = []
    size = 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        for start in range(0, len(lines), 50):
            piece = "".join(lines[start : start + 50]) + MIXED
            pieces.append(piece)
            size += len(piece.encode())
            if size >= MEGABYTE:
                return "".join(pieces)
    return "".join(pieces)


def processor_name() -> str:
    """The processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
