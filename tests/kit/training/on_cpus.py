"""Runs a training script where accelerate would heed FSDP and DeepSpeed on a GPU alone.

accelerate launch --config_file fsdp2.yaml on_cpus.py train.py ARGUMENTS…
"""

import os
import runpy
import sys

from tests.kit.training.ranks.fsdp2 import shard_on_cpus
from tests.kit.training.ranks.rows import deepspeed_on_cpus

if __name__ == "__main__":
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpus()
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        deepspeed_on_cpus()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
