"""A deferred module is the module itself from its first use on."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from optkit.ground.execute.lazy_modules import defer
for name in ("sympy", "onnx_ir._symbolic_shapes", "no_such_module", "onnx_ir.no_such_part"):
    defer(name)
import onnx_ir
assert "sympy.core" not in sys.modules
{use}
assert "sympy.core" in sys.modules
import sympy
assert sys.modules["sympy"] is sympy and type(sympy) is type(sys)
assert str(sympy.Symbol("n") + 1) == "n + 1"
"""


@pytest.mark.parametrize(
    "use",
    [
        'assert (onnx_ir.SymbolicDim("n") + 1).value == "n + 1"',
        'from sympy.core.symbol import Symbol; assert str(Symbol("n")) == "n"',
        "import sympy.stats; assert sympy.stats.Normal and sympy.Symbol",
        "from sympy import *; assert Symbol",
        "import torch.fx.experimental.symbolic_shapes as found; assert found.sympy.Symbol",
    ],
)
def test_first_use_imports_it_once_and_whole(use: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(use=use)], check=True)


def test_what_is_imported_or_missing_is_left_alone() -> None:
    program = (
        "import sys, json; before = json\n"
        "from optkit.ground.execute.lazy_modules import defer\n"
        'defer("json"); defer("no_such_module"); defer("no_such_package.part")\n'
        'assert sys.modules["json"] is before and "no_such_module" not in sys.modules\n'
    )
    subprocess.run([sys.executable, "-c", program], check=True)
