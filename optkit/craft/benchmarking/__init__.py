"""Figures of engines and graphs: latency, accuracy and fidelity, their intervals, and the gates.

latency        the timing protocol and speedup
machine_state  the state of the host during a run
steady         levels of a series: warm-up and drift
sweep          the knee and the best batch
regression     is one slower than another by more than a limit
accuracy       a task's score and its interval
paired_drop    how much worse a candidate scores than its baseline
sample_size    how many samples would decide
fidelity       agreement of outputs, SQNR and cosine
intervals      the statistics behind every `ci95`
gates          pass, fail or inconclusive, in words
slices         the worst slice of the samples
sequential     when an evaluation may stop early
"""
