"""An x86 processor without AVX-512 and VNNI: a virtual environment whose Python, and every program
that this Python starts, sees an AVX2 processor through CPUID.

    python -m tests.avx2.environment FOLDER
    FOLDER/bin/python -m pytest

With `--keep-avx512` it sees an AVX-512 processor with VNNI that lacks AMX alone.

Libraries choose their kernels by CPUID. ONNX Runtime's library is copied, and each CPUID
instruction is replaced by a trap, which `cpuid.c` answers; numpy, OpenBLAS, torch and oneDNN have
settings for it. The kernels are those of an AVX2 machine, at the full speed of this machine. The
environment does not detect an instruction beyond AVX2 that a library uses without a CPUID query.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import site
import subprocess
import sys
from pathlib import Path

import onnxruntime

NEEDED = ("cc", "objdump", "readelf")
MISSING = [program for program in NEEDED if shutil.which(program) is None]
"""Of Debian's gcc and binutils."""

_AVX2 = {
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
_CPUID, _TRAP = b"\x0f\xa2", b"\xcc\x90"  # cpuid; int3, nop


def avx2_python(folder: Path, keep_avx512: bool = False) -> Path:
    """The Python of an environment made in `folder`, with this environment's packages.
    `keep_avx512`: it lacks AMX alone."""
    folder = folder.resolve()
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    program = folder / "bin" / "python"
    for path in (packages, program.parent):
        path.mkdir(parents=True)
    environment = Path(sys.prefix)
    if (environment / "pyvenv.cfg").exists():
        shutil.copy(environment / "pyvenv.cfg", folder)
    else:
        (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    # behind the copy of ONNX Runtime; their .pth files count too
    others = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (packages / "others.pth").write_text(f"import site; {others}\n")
    shutil.copytree(Path(onnxruntime.__file__).parent, packages / "onnxruntime")
    for library in sorted((packages / "onnxruntime" / "capi").glob("*.so*")):
        _trap(library)
    mask = folder / "cpuid.so"
    source = Path(__file__).with_name("cpuid.c")
    kept = ["-DKEEP_AVX512"] if keep_avx512 else []
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *kept, "-o", mask, source],
                   check=True)  # fmt: skip
    chosen = _AVX512 if keep_avx512 else _AVX2
    settings = shlex.join(f"{key}={value}" for key, value in chosen.items())
    real = shlex.quote(str(Path(sys.executable).resolve()))
    # `exec -a`: `sys.executable`, and so every worker and child of a test, is this program
    program.write_text(
        f"#!/bin/bash\nexport LD_PRELOAD={shlex.quote(str(mask))} {settings}\n"
        f'exec -a "$0" {real} "$@"\n'
    )
    program.chmod(0o755)
    return program


def _trap(library: Path) -> None:
    """Each CPUID instruction of an ELF file becomes a trap of the same two bytes."""
    listing = _output("objdump", "--disassemble", "--no-show-raw-insn", library)
    addresses = [
        int(found[1], 16) for found in re.finditer(r"^ *([0-9a-f]+):\s+cpuid\b", listing, re.M)
    ]
    segments = [
        tuple(int(number, 16) for number in found.groups())  # offset, address, size in the file
        for found in re.finditer(
            r"LOAD +0x([0-9a-f]+) 0x([0-9a-f]+) 0x[0-9a-f]+ 0x([0-9a-f]+)",
            _output("readelf", "--program-headers", "--wide", library),
        )
    ]
    data = bytearray(library.read_bytes())
    for address in addresses:
        at = next(o + address - start for o, start, size in segments
                  if start <= address < start + size)  # fmt: skip
        if data[at : at + 2] != _CPUID:
            raise ValueError(f"{library.name}: no CPUID at {address:#x}")
        data[at : at + 2] = _TRAP
    library.write_bytes(data)


def _output(*command: object) -> str:
    parts = [str(part) for part in command]
    return subprocess.run(parts, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep-avx512", action="store_true", help="mask AMX alone")
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    print(avx2_python(asked.folder, asked.keep_avx512))
