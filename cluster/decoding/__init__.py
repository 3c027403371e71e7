"""The algorithms of speculative diffusion, in plain torch: noise, effort, leniency, one draft–verify round, stopping."""

from cluster.decoding.denoise import DraftBlock, denoise
from cluster.decoding.effort import Effort
from cluster.decoding.leniency import LOSSLESS, Leniency
from cluster.decoding.sampling import GREEDY, Sampling
from cluster.decoding.stats import RequestStats
from cluster.decoding.stopping import StopRules
from cluster.decoding.verify import Verdict, emitted_tokens, verify_block

__all__ = [
    "GREEDY",
    "LOSSLESS",
    "DraftBlock",
    "Effort",
    "Leniency",
    "RequestStats",
    "Sampling",
    "StopRules",
    "Verdict",
    "denoise",
    "emitted_tokens",
    "verify_block",
]
