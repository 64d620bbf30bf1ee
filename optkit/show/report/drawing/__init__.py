"""Every drawing of optkit: numbers first, SVG from one set of templates second.

axes       an axis, its ticks         charts     latency, scores, layers of one build
scatter    latency against accuracy   front      cost against latency of a plan
roofline   operations per byte against operations per second

charts.html draws each of them (one macro a drawing), drawing.css colours them, and alone.svg is a
drawing as a file of its own. Positions are percent of the width and of the height, so that text
keeps its size on a phone.
"""
