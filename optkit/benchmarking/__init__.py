"""What an engine really does: latency, accuracy and fidelity, their intervals, and the gates.

latency    the timing protocol and speedup        machine   the state of the host meanwhile
accuracy   a task's score and the paired drop     fidelity  agreement of outputs, SQNR and cosine
intervals  the statistics behind every `ci95`     gates     pass, fail or inconclusive, in words
"""
