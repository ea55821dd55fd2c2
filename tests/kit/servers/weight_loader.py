"""Runs in the workers of a vLLM server: `--worker-extension-cls`."""

from typing import Any


class WeightLoader:
    """Loads weights as the worker extension of TRL's server does, which resets no cache."""

    model_runner: Any

    def load_file(self, path: str) -> None:
        """Load the tensors of a safetensors file, by the names of checkpoints."""
        from safetensors.torch import load_file

        self.model_runner.model.load_weights(load_file(path).items())
