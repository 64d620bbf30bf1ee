from __future__ import annotations

import ml_dtypes
import pytest

from optkit.facts.dtypes import FLOATS, Float


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_the_ranges_of_floats(dtype: Float) -> None:
    names = {"float8e4m3fn": "float8_e4m3fn", "float4e2m1": "float4_e2m1fn"}
    known = ml_dtypes.finfo(names.get(dtype.name, dtype.name))
    assert (known.bits, known.nmant) == (dtype.bits, dtype.mantissa)
    assert (float(known.smallest_normal), float(known.max)) == (dtype.smallest, dtype.largest)
