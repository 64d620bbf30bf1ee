"""An x86 processor without VNNI, emulated by qemu-user: a virtual environment whose Python, and all
that this Python starts, runs on a Haswell (AVX2)."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

QEMU = shutil.which("qemu-x86_64")
# a Haswell less what qemu does not emulate and would warn of
_CPU = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"
# In qemu 7.2 numpy's AVX2 code for np.argsort gives wrong orders (uint64 at n = 512), which on a
# real processor it does not.
_NUMPY = "NPY_DISABLE_CPU_FEATURES=X86_V3"


def avx2_python(folder: Path) -> Path:
    """The Python of an environment made in `folder`, with this environment's packages.

    `-0` names the wrapper as the program that runs: `sys.executable`, and with it every worker and
    every child of a test, stays in the emulation.
    """
    environment, program = Path(sys.prefix), folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    if (environment / "pyvenv.cfg").exists():
        shutil.copy(environment / "pyvenv.cfg", folder)
        (folder / "lib").symlink_to(environment / "lib")
    real = shlex.quote(str(Path(sys.executable).resolve()))
    program.write_text(f'#!/bin/sh\nexec env {_NUMPY} {QEMU} -cpu {_CPU} -0 "$0" {real} "$@"\n')
    program.chmod(0o755)
    return program
