"""The time of GroupQueryAttention with a sliding window (ONNX Runtime, CPU).

For one token and for a prompt; with the window as a bias, as the operator's attribute
`local_window_size`, and with a cache that keeps only the window. The forms take turns; the least
CPU time of each counts.

    python experiments/generation/window.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

HEADS, GROUPS, SIZE = 8, 2, 64
WINDOW, PAST, PROMPT = 512, 4095, 2048
KINDS = {"float32": (TensorProto.FLOAT, np.float32), "int8": (TensorProto.INT8, np.int8)}


def session(cache: str, *, biased: bool, attribute: bool) -> ort.InferenceSession:
    kind, floats = KINDS[cache][0], TensorProto.FLOAT
    wide = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    inputs = [
        *(helper.make_tensor_value_info(n, floats, [1, "s", c * SIZE]) for n, c in wide.items()),
        *(helper.make_tensor_value_info(n, kind, [1, GROUPS, "p", SIZE]) for n in ("pk", "pv")),
        helper.make_tensor_value_info("last", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("all", TensorProto.INT32, []),
    ]
    names = ["q", "k", "v", "pk", "pv", "last", "all", "", "", "", "", ""]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "scale": SIZE**-0.5}
    scales = []
    if biased:
        inputs.append(helper.make_tensor_value_info("bias", floats, [1, 1, "s", "t"]))
        names[10] = "bias"
    if cache == "int8":
        numbers = np.full((1, GROUPS, 1, SIZE), 0.03, np.float32)
        scales = [helper.make_tensor(n, floats, numbers.shape, numbers.ravel()) for n in "ab"]
        names += ["a", "b"]
        attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL",
                       "kv_cache_bit_width": 8}  # fmt: skip
    if attribute:
        attributes["local_window_size"] = WINDOW
    while not names[-1]:
        names.pop()
    outputs = [helper.make_tensor_value_info(n, k, None) for n, k in
               (("y", floats), ("nk", kind), ("nv", kind))]  # fmt: skip
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "nk", "nv"], domain="com.microsoft", **attributes
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, outputs, scales)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    content = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def bound(made: ort.InferenceSession, cache: str, new: int, past: int, *, biased: bool, near: int):
    """A binding whose cache is one buffer, with its values. `near`: keys that the bias shows."""
    random, total = np.random.default_rng(0), past + new
    feed = {n: random.standard_normal((1, new, c * SIZE)).astype(np.float32)
            for n, c in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))}  # fmt: skip
    feed |= {n: np.ones((1, GROUPS, total, SIZE), KINDS[cache][1]) for n in ("pk", "pv")}
    feed |= {"last": np.full(1, total - 1, np.int32), "all": np.array(total, np.int32)}
    if biased:
        distance = past + np.arange(new)[:, None] - np.arange(total)
        feed["bias"] = np.where(distance >= near, np.float32(-3.4e38), np.float32(0))[None, None]
    values = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in feed.items()}
    binding = made.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("nk", values["pk"])
    binding.bind_ortvalue_output("nv", values["pv"])
    binding.bind_output("y")
    return binding, values


def measured(cache: str, new: int, past: int, rounds: int) -> dict[str, float]:
    forms = {"all tokens": (False, False, past), "window as bias": (True, False, past),
             "local_window_size": (False, True, past),
             "local_window_size, padding as bias": (True, True, past)}  # fmt: skip
    if past:
        forms["bias, cache cut to the window"] = (True, False, WINDOW - 1)
    runs = {}
    for name, (biased, attribute, kept) in forms.items():
        made = session(cache, biased=biased, attribute=attribute)
        near = past + new if attribute else WINDOW
        runs[name] = (made, *bound(made, cache, new, kept, biased=biased, near=near))
    least = dict.fromkeys(runs, np.inf)
    for _ in range(rounds):
        for name, (made, binding, _values) in runs.items():
            start = time.process_time()
            made.run_with_iobinding(binding)
            least[name] = min(least[name], time.process_time() - start)
    return {name: round(1e3 * seconds, 3) for name, seconds in least.items()}


def main() -> None:
    found = {
        "onnxruntime": ort.__version__, "heads": HEADS, "kv_heads": GROUPS, "head_size": SIZE,
        "window": WINDOW, "threads": 1, "unit": "ms of CPU time, least of all rounds",
        "rows": [
            {"cache": cache, "new": new, "past": past, "ms": measured(cache, new, past, rounds)}
            for cache in KINDS for new, past, rounds in ((1, PAST, 200), (PROMPT, 0, 7))
        ],
    }  # fmt: skip
    text = json.dumps(found, indent=1)
    Path(__file__).with_suffix(".json").write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
