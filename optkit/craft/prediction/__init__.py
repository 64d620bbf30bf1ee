"""Predictions of speed, memory and cost before anything runs: pure functions over layers and costs.

work                  operations and bytes of a task
graph_work, compiled  a graph as work, and the layers of a compiled engine as work
decoder_work          a decoder as work
decoder_shape         the sizes of a decoder
work_time, fitted     seconds of work on a target, and the fitted efficiencies
lower_bound           the lower bound of the time of work
call                  one call of a model with its interval, and the speedup over another model
card_kernels          kernels that are timed on a card
card_correction       what their times change; card_lookup: the user's measurement of a card
serving               a decoder that serves: tokens per second, crossover batches
memory, cost          bytes on the device, dollars and energy
economics, feed       a load, spot and bought devices, the front; what the host must deliver
plans, advice         rows of `optkit plan`, and advice from them
"""
