"""Samplers draw tokens from the policy: the protocols, and one module for each kind."""

from abut.samplers.hosted import ChatSampler, TextSampler
from abut.samplers.in_process import StreamSampler
from abut.samplers.sampler import BatchSampler, Sample, Sampler, SampleRequest
from abut.samplers.scripted import ScriptedReplies, ScriptedSampler

__all__ = [
    "BatchSampler",
    "ChatSampler",
    "Sample",
    "SampleRequest",
    "Sampler",
    "ScriptedReplies",
    "ScriptedSampler",
    "StreamSampler",
    "TextSampler",
]
