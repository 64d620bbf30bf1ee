"""What can be said about speed before anything runs: pure functions over layers and costs.

work                what a device is asked to do
layers, compiled    a graph as work, and the layers of a compiled engine
decoder, shapes     a decoder as work, and its sizes
latency, fitted     seconds of work on a target, and the fitted numbers behind them
roofline            the least that work can take
call                one call of a model with its interval, and the gain over another model
serving             a decoder that serves: tokens per second, where formats stop paying
memory, cost        bytes on the device, dollars and energy
plans, advice       rows of `optkit plan`, and what follows from them
"""
