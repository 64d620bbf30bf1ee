"""Tables of embeddings in 8 bits: looked up row by row and close to the float ones, or left."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit.craft.quantization.qdq.embeddings import quantize_embeddings
from optkit.ground import graph
from tests.networks import network

LOOKUPS = """<ir_version: 10, opset_import: ["" : 21]>
g (int64[N,S] ids, int64[S] places, float[512,64] w_words, float[300,64] w_places)
=> (float[N,S,64] y) {
  [words] a = Gather (w_words, ids)
  [places] b = Gather (w_places, places)
  [sum] y = Add (a, b)
}"""


def fed(n: int = 3, s: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"ids": rng.integers(0, 512, (n, s)), "places": rng.integers(0, 300, s)}


def test_tables_are_stored_in_bytes_and_looked_up_by_rows(workshop: Any) -> None:
    model = network(LOOKUPS)
    small = model.clone()
    assert quantize_embeddings(small) == {"w_words": 512, "w_places": 300}
    stored = {v.name: v.const_value.dtype for v in small.graph.initializers.values()}
    assert stored["w_words_quantized"] == ir.DataType.INT8 and "w_words" not in stored
    assert {"words", "places", "sum"} <= {node.name for node in small.graph}
    size = sum(v.const_value.nbytes for v in small.graph.initializers.values())
    assert size < 0.27 * sum(v.const_value.nbytes for v in model.graph.initializers.values())
    expected, found = (workshop.run(m, fed())["y"] for m in (model, small))
    words, places = (graph.array(model.graph.initializers[n]) for n in ("w_words", "w_places"))
    step = [np.abs(table).max(axis=1) / 127 for table in (words, places)]
    bound = step[0][fed()["ids"]] / 2 + step[1][fed()["places"]] / 2
    assert (np.abs(found - expected) <= bound[..., None] * 1.001).all()


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**31), negative=st.booleans())
def test_every_row_is_found_whatever_the_index(workshop: Any, seed: int, negative: bool) -> None:
    """ONNX counts negative indices from the end: codes and scales must agree on the row."""
    model = network(LOOKUPS)
    small = model.clone()
    quantize_embeddings(small)
    ids = fed(seed=seed)
    if negative:
        ids = {"ids": ids["ids"] - 512, "places": ids["places"] - 300}
    expected, found = (workshop.run(m, ids)["y"] for m in (model, small))
    assert np.abs(found - expected).max() < np.abs(expected).max() / 100


@pytest.mark.parametrize(
    "text",
    [
        # tied output weights
        """[a] a = Gather (w, ids)
        [turn] t = Transpose <perm=[1,0]> (w)
        [b] y = MatMul (a, t)""",
        """[a] t = Gather <axis=1> (w, ids)
        [b] y = Identity (t)""",
    ],
)
def test_what_is_not_only_looked_up_by_rows_stays_float(text: str) -> None:
    model = network(
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        f"g (int64[N] ids, float[512,64] w) => (float[A,B] y) {{\n{text}\n}}"
    )
    assert quantize_embeddings(model) == {} and "w" in model.graph.initializers


def test_a_small_table_is_not_worth_it() -> None:
    model = network(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (int64[N] ids, float[16,8] w) => (float[N,8] y) {
        [a] y = Gather (w, ids)
        }"""
    )
    assert quantize_embeddings(model) == {}
