"""Two thousand episodes on 64 environments of a cluster on which everything fails once.

Prints as JSON what came of them. Run with a folder and `ray_cluster.MARK` set: what is left of the
cluster afterwards is found by that.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

EPISODES, SIZE, SLOTS = 2_000, 64, 8
STEP_S = 5.0
"""What the step that hangs costs: no trial is over sooner than that after it began."""


class Chaos:
    """A script of the policy that has something happen at every so many samples."""

    def __init__(self, folder: Path, ids: list[int], cluster: Any, mark: str) -> None:
        self.done: list[str] = []
        self.hangs_from = 0.0
        self._folder, self._ids, self._cluster, self._mark = folder, ids, cluster, mark
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._count = 0
        self._threads: list[threading.Thread] = []

    def __call__(self, request: Any) -> list[int]:
        with self._lock:
            self._count += 1
            count = self._count
        events = {500: "kill", 1000: "kill", 1500: "node", 2500: "kill", 3000: "kill"}
        what = {**events, 4000: "hang", 5000: "leak"}.get(count)
        if what is not None:
            thread = threading.Thread(target=getattr(self, f"_{what}"))
            self._threads.append(thread)
            thread.start()
        return self._ids

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _kill(self) -> None:
        from tests.kit.servers.ray_cluster import processes

        actors = [p for p, line in processes(self._mark).items() if "ray::EnvHost" in line]
        os.kill(self._random.choice(actors), signal.SIGKILL)
        self.done.append("kill")

    def _node(self) -> None:
        self._cluster.remove_node(self._cluster.worker_nodes.copy().pop(), False)
        self.done.append("node")

    def _hang(self) -> None:
        self.hangs_from = time.monotonic()
        (self._folder / "hang").touch()
        self.done.append("hang")

    def _leak(self) -> None:
        (self._folder / "leak").touch()
        self.done.append("leak")


def main(folder: Path) -> dict[str, Any]:
    """Play without a failure, then with all."""
    os.environ["FAR_FOLDER"] = str(folder)
    from transformers import AutoTokenizer

    import abut
    from abut.ray import RayPool
    from tests.kit.checkout import DEMO_ASSETS
    from tests.kit.servers.ray_cluster import MARK, a_cluster, cpu_s, processes
    from tests.kit.stage.ray_envs import Logged
    from tests.kit.stage.rollouts import Recording, Stage, check_exact

    hf_tokenizer = AutoTokenizer.from_pretrained(DEMO_ASSETS)
    stage = Stage(
        abut.Tokenizer.from_pretrained(hf_tokenizer), abut.ChatTemplateProcessor(hf_tokenizer)
    )
    yes = list(stage.says()(None))  # type: ignore[arg-type]
    with a_cluster(nodes=3) as cluster:
        began = time.monotonic()
        with RayPool(Logged, size=SIZE, slots=SLOTS, address=cluster.address) as pool:
            stage.play(*[pool] * SIZE, sampler=Recording(lambda request: yes))
            started_s = time.monotonic() - began
            marked = processes(os.environ[MARK])
            actors = [pid for pid, line in marked.items() if "ray::EnvHost" in line]
            driver_s, actors_s = cpu_s([os.getpid()]), cpu_s(actors)
            began = time.monotonic()
            calm = stage.play(*[pool] * EPISODES, sampler=Recording(lambda request: yes))
            calm_s = time.monotonic() - began
            driver_s, actors_s = cpu_s([os.getpid()]) - driver_s, cpu_s(actors) - actors_s
            chaos = Chaos(folder, yes, cluster, os.environ[MARK])
            began = time.monotonic()
            played = stage.play(
                *[pool] * EPISODES,
                sampler=Recording(chaos),
                step_timeout_s=STEP_S,
                retries=3,
                max_failed_frac=1.0,
            )
            seconds = time.monotonic() - began
            chaos.join()
    for batch in (calm, played):
        for rollout in batch.rollouts:
            if not rollout.failed:
                calls = batch.calls(rollout) if batch is calm else batch.calls(rollout)[-3:]
                check_exact(rollout.columns, calls)
    steps = Counter((folder / "steps").read_text().split("\n")[:-1])
    ends = [[m["content"] for m in r.messages if m["role"] == "user"][1:] for r in played.rollouts]
    return {
        "started_s": round(started_s, 1),
        "calm_s": round(calm_s, 1),
        "calm_cpu_s": {"driver": round(driver_s, 1), "actors": round(actors_s, 1)},
        "faults_s": round(seconds, 1),
        "hang_began_s": round(chaos.hangs_from - began, 1),
        "happened": sorted(chaos.done),
        "in_order": [r.rollout_id for r in played.rollouts] == [f"r{i}" for i in range(EPISODES)],
        "stopped": Counter(str(r.stop_reason) for r in [*calm.rollouts, *played.rollouts]),
        "again": sum(r.attempts > 1 for r in played.rollouts),
        "twice": [step for step, count in steps.items() if count > 1],
        "most_steps": max(int(step.split()[1]) for step in steps),
        "whole": sum([end.split()[1] for end in said] == ["1", "2", "3"] for said in ends),
        "left_files": sorted(path.name for path in folder.iterdir()),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
