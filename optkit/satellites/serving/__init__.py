"""How many devices serve a load of requests: a simulation of engines over the predictor of `plan`.

    load, policy, limits ─search→ devices ─simulate→ requests with their times ─figures→ document

token_lengths, traffic   requests: at random, or of a file
serving_policy           how an engine serves; speculative decoding
pass_times               how long one pass takes: the predictor, kept on a grid
paged_cache              blocks of the key-value cache, prefixes that requests share
serving_engine           what engines have in common; continuous_engine and batch_engine serve
served_run               copies that serve the requests, in SimPy
run_figures              percentiles and whether the queue is stable
fewest_devices           the search
serving_answer           optkit.serving/v1
"""

from __future__ import annotations

from optkit.satellites.serving.fewest_devices import ServedLoad, ServingNeeds
from optkit.satellites.serving.serving_answer import ServingQuestion, answer
from optkit.satellites.serving.serving_policy import BATCHING, Drafting, ServingPolicy
from optkit.satellites.serving.token_lengths import TokenLengths
from optkit.satellites.serving.traffic import read_trace

__all__ = [
    "BATCHING",
    "Drafting",
    "ServedLoad",
    "ServingNeeds",
    "ServingPolicy",
    "ServingQuestion",
    "TokenLengths",
    "answer",
    "read_trace",
]
