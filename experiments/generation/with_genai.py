"""Times ONNX Runtime GenAI's own loop: one JSON task per line on stdin, one result on stdout.

Runs in GenAI's environment. A task: model (a folder), ids (the prompt), new (tokens to make),
threads. A result: seconds of prefill and of decode, each with its tokens.
"""

from __future__ import annotations

import json
import sys
import time

import onnxruntime_genai as og


def load(folder: str, threads: int) -> og.Model:
    config = og.Config(folder)
    session = {"intra_op_num_threads": threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    return og.Model(config)


def run(model: og.Model, ids: list[int], new: int) -> dict[str, list[float]]:
    """The first new token belongs to prefill, as in optkit."""
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + new, do_sample=False)
    generator = og.Generator(model, parameters)
    marks = [time.perf_counter()]
    generator.append_tokens(ids)
    generator.generate_next_token()
    marks.append(time.perf_counter())
    while not generator.is_done():
        generator.generate_next_token()
    marks.append(time.perf_counter())
    made = len(generator.get_sequence(0)) - len(ids) - 1
    return {"prefill": [len(ids), marks[1] - marks[0]], "decode": [made, marks[2] - marks[1]]}


def main() -> None:
    models: dict[str, og.Model] = {}
    for line in sys.stdin:
        task = json.loads(line)
        if task["model"] not in models:
            models[task["model"]] = load(task["model"], task["threads"])
        found = run(models[task["model"]], task["ids"], task["new"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
