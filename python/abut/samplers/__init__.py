"""Samplers draw tokens from the policy: the protocols, and one module for each kind."""

from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest
from abut.samplers.scripted import ScriptedReplies, ScriptedSampler

__all__ = [
    "BatchSampler",
    "Sample",
    "SampleRequest",
    "Sampler",
    "ScriptedReplies",
    "ScriptedSampler",
    "StreamSampler",
]
