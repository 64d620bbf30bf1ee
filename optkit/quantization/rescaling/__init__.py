"""Exact rewrites in front of quantization: a factor per channel is moved where it costs less.

channels        which channel each element of a value belongs to
rules           what a factor does at each operator
fold            where a factor goes, up to the constants that take it
groups          a value and the nodes that multiply it: one factor per channel
search          the candidate with the least error
smoothquant, equalization, awq    candidates, and what they are judged by
rescale         all groups of a graph
"""
