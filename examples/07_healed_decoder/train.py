"""Train the decoder on Python's standard library and write its weights (fp16 safetensors).

    python train.py            about ten minutes on two cores; replaces weights.safetensors
    python train.py --quick    a few seconds, writes nothing

What is printed at the end is the perplexity per held-out byte of the weights as they are written.
"""

from __future__ import annotations

import argparse

import decoder
import numpy as np
import torch
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the decoder.")
    parser.add_argument("--quick", action="store_true", help="a few steps; writes nothing")
    quick = parser.parse_args().quick

    torch.manual_seed(0)
    net = decoder.Decoder()
    decoder.train(net, 4 if quick else decoder.FLOAT_STEPS, decoder.FLOAT_RATE)
    weights = {name: value.half() for name, value in net.state_dict().items()}
    net.load_state_dict(weights)  # copied into float32: evaluate what is written
    if not quick:
        save_file(weights, decoder.WEIGHTS)
    windows = decoder.held_out(32 if quick else 512)
    with torch.no_grad():
        nats = [decoder.losses(net(ids).numpy(), ids.numpy()) for ids in windows.split(32)]
    print(f"held-out perplexity per byte: {np.exp(np.concatenate(nats).mean()):.4f}")


if __name__ == "__main__":
    main()
