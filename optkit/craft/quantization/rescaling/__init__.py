"""Exact rewrites before quantization: a factor per channel moves to the operand that loses less by
it.

channels        which channel each element of a value belongs to
rules           the effect of a factor at each operator
fold            where a factor goes, up to the constants that absorb it
factors         what folding has multiplied constants by, as a file
groups          a value and the nodes that multiply it: one factor per channel
factor_search   the candidate with the least error
smoothquant, equalization, awq    the candidates, and their errors
rescale         all groups of a graph
"""
