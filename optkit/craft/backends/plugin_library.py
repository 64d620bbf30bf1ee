"""The library of TensorRT plugins that a graph or an engine needs: it is loaded once in a process,
if this user has trusted it.

The library registers its creators (`getCreators`, IPluginCreatorV3One). The parser takes a plugin
by the name of the operator; an engine needs the same library again when it is loaded.

The parser of TensorRT-RTX 1.7 opens `libtensorrt_rtx.so` when it adds the first plugin. The wheel
has this library only as `libtensorrt_rtx.so.1`, and the process aborts ("Unable to open library:
libtensorrt_rtx.so", a C++ exception that nobody catches). The parser searches its own folder. So it
is loaded from a folder of links, in which the library has the missing name
(docs/studies/gpu_hosts.md#plugins-of-tensorrt).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from optkit.craft.backends.build_log import BuildMessages
from optkit.craft.backends.build_log import reason as reason_of
from optkit.craft.backends.tensorrt_objects import Library, Problem, Registry
from optkit.facts.errors import InputRefused
from optkit.ground.operator_library import PLUGINS_NOTE, OperatorLibrary

_LOADED: set[tuple[str, str]] = set()  # the module of TensorRT, and the digest
_CORE, _PARSER = "libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so"


def of(model: Path) -> OperatorLibrary | None:
    """The library that a graph names; None if it names none. Raises UnsafeFile."""
    return OperatorLibrary.of(model, PLUGINS_NOTE)


def load(trt: Library, library: OperatorLibrary | None, where: str, record: BuildMessages) -> None:
    """Let TensorRT load the library that `where` needs, a graph or an engine. `record`: the log of
    a builder or runtime that exists. Raises UnsafeFile unless this user has trusted the library on
    this machine, InputRefused if TensorRT does not take it."""
    if library is None or (trt.__name__, library.sha256) in _LOADED:
        return
    registry: Registry = trt.get_plugin_registry()
    if registry.load_library(str(library.open_path(where))) is None:
        raise InputRefused(
            "TensorRT does not load the library of its plugins: "
            f"{reason_of(record.errors) or 'it gives no reason'}",
            where=library.file,
            hint="it must export getCreators, and be built for this version of TensorRT; two "
            "libraries in one process must not have plugins of the same name",
        )
    _LOADED.add((trt.__name__, library.sha256))


def refuse_missing(problems: Sequence[Problem], model: Path) -> None:
    """Raise InputRefused if the parser has made no plugin for a node with the library that the
    graph names."""
    library = of(model)
    for problem in problems:
        if library is not None and "plugin" in problem.desc().lower():
            raise InputRefused(
                f"{library.file} gives no plugin for the operator {problem.node_operator()}: "
                f"{reason_of([problem.desc()])}",
                where=f"node {problem.node_name()!r}",
                hint="its creator (IPluginCreatorV3One) has the name of the operator, version 1 "
                "or that of the node's attribute plugin_version, and no namespace or that of the "
                "node's domain",
            )


def link_parser() -> None:
    """Load the parser of TensorRT-RTX so that it finds the library; no effect after the module
    `tensorrt_rtx` is imported, on other systems than Linux, or with a wheel that has both names."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if sys.platform != "linux" or "tensorrt_rtx" in sys.modules or spec is None:
        return
    for wheel in map(Path, spec.submodule_search_locations or ()):
        core_file, parser_file = (next(wheel.glob(f"{name}.*"), None) for name in (_CORE, _PARSER))
        if core_file is None or parser_file is None or (wheel / _CORE).exists():
            continue
        with contextlib.suppress(OSError):  # only plugins need it
            folder = Path(tempfile.mkdtemp(prefix="optkit-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            (folder / _CORE).symlink_to(core_file)
            link = folder / parser_file.name
            link.symlink_to(parser_file)
            ctypes.CDLL(str(link))
