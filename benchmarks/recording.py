"""Writes records in a new process, and prints time, memory and size as one JSON object.

The row `records` starts it with the format, the number of rollouts, and the tokens of each.
"""

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from abut import Columns, Rollout
from abut.records.read import read_records
from abut.records.recorder import ParquetRecorder, recorder_at
from abut.rollout.rollout import StopReason, TurnRecord
from benchmarks.loading import resident_bytes
from benchmarks.texts import Replies

FORMS = {"Parquet": "rollouts", "JSON lines": "rollouts.jsonl"}
_TURNS = 16
_VOCABULARY = 150_000


def main(arguments: Sequence[str]) -> None:
    """Write in one format, read the records again, and print the measurements."""
    form, count, tokens = arguments[0], int(arguments[1]), int(arguments[2])
    rollouts = [_rollout(number, tokens) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / f"first-{FORMS[form]}", rollouts[:1])  # imports what it needs
        path = Path(folder) / FORMS[form]
        before = resident_bytes()
        began = time.perf_counter()
        _write(path, rollouts)
        found: dict[str, object] = {"time": time.perf_counter() - began}
        after = resident_bytes("VmHWM")
        found["peak memory"] = None if before is None or after is None else after - before
        files = [path] if path.is_file() else list(path.iterdir())
        found["size"] = sum(file.stat().st_size for file in files)
        found["digest"] = _digest(path)
    sys.stdout.write(json.dumps(found) + "\n")


def _write(path: Path, rollouts: Sequence[Rollout]) -> None:
    recorder = recorder_at(path)
    for rollout in rollouts:
        recorder.write(rollout, run_id="run", step=0, mode="train", rank=0)
    if isinstance(recorder, ParquetRecorder):
        recorder.flush()


def _digest(path: Path) -> str:
    """Return a digest of the records; JSON lines has the shortest decimals of the same float32."""
    digest = hashlib.sha256()
    for record in read_records(path):
        digest.update(np.asarray(record["logprobs"], dtype=np.float32).tobytes())
        digest.update(json.dumps({**record, "time": None, "logprobs": None}).encode())
    return digest.hexdigest()


def _rollout(number: int, tokens: int) -> Rollout:
    rng = np.random.default_rng(number)
    prompt, made = tokens // 8, tokens - tokens // 8
    # A few ids are frequent, as in real text.
    ids = np.minimum(rng.zipf(1.2, tokens), _VOCABULARY - 1)
    mask = (np.arange(made) // (made // _TURNS) % 2 == 0).astype(np.uint8)
    logprobs = np.where(mask == 1, -rng.exponential(0.3, made), 0).astype(np.float32)
    columns = Columns(
        prompt_ids=ids[:prompt],
        completion_ids=ids[prompt:],
        logprobs=logprobs.round(6),
        env_mask=mask,
    )
    texts = Replies(number, 4 * tokens // _TURNS, pool_bytes=200_000).take(_TURNS)
    return Rollout(
        f"train-0-0-{number}-run",
        number,
        columns=columns,
        provenance=np.concatenate([np.zeros(prompt, np.uint8), 3 * mask]),
        reward=0.5,
        turns=[TurnRecord(k, k + 1, "stop", 0.25) for k in range(_TURNS)],
        seams=[("barrier", True)] * (2 * _TURNS),
        messages=[{"role": "user", "content": text} for text in texts],
        stop_reason=StopReason.ENV_DONE,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
