"""What can be said about speed before anything runs: pure functions over layers and costs.

roofline            bounds of an engine's layers, for builds
work, layers        what a device is asked to do, and a graph as that
decoder, shapes     a decoder as work, and its sizes
latency, fitted     seconds of work on a target, and the fitted numbers behind them
serving             a decoder that serves: tokens per second, where formats stop paying
memory, cost        bytes on the device, dollars and energy
plans, advice       rows of `optkit plan`, and what follows from them
chart               the roofline plot
"""
