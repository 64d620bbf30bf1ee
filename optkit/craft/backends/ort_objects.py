"""The parts of ONNX Runtime's objects that optkit uses, for type checkers, because its own types
are incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from optkit.facts.tensors import Feed


class Value(Protocol):
    """An OrtValue: a tensor on the CPU or on a device."""

    def numpy(self) -> np.ndarray: ...
    def update_inplace(self, array: np.ndarray, /) -> None: ...


class NodeArg(Protocol):
    """An input or output of a graph: `type` is "tensor(float)", a size is a number or a name."""

    name: str
    type: str
    shape: Sequence[int | str | None]


class ModelMeta(Protocol):
    custom_metadata_map: Mapping[str, str]


class AssignedNode(Protocol):
    name: str
    op_type: str


class ProviderNodes(Protocol):
    """Nodes that a provider runs as one."""

    ep_name: str

    def get_nodes(self) -> Sequence[AssignedNode]: ...


class Binding(Protocol):
    def bind_cpu_input(self, name: str, array: np.ndarray, /) -> None: ...
    def bind_ortvalue_input(self, name: str, value: Value, /) -> None: ...
    def bind_output(self, name: str, device: str, /) -> None: ...
    def bind_ortvalue_output(self, name: str, value: Value, /) -> None: ...
    def get_outputs_as_ortvaluevector(self) -> Sequence[Value]: ...
    def copy_outputs_to_cpu(self) -> Sequence[np.ndarray]: ...


class EpDevice(Protocol):
    """A device as one execution provider runs it."""

    ep_name: str


class NativeOptions(Protocol):
    """The library's SessionOptions."""

    intra_op_num_threads: int
    inter_op_num_threads: int
    graph_optimization_level: object
    enable_cpu_mem_arena: bool
    enable_profiling: bool
    log_severity_level: int
    optimized_model_filepath: str
    profile_file_prefix: str

    def add_session_config_entry(self, key: str, value: str, /) -> None: ...
    def add_provider_for_devices(
        self, devices: Sequence[EpDevice], options: Mapping[str, str], /
    ) -> None: ...
    def has_providers(self) -> bool: ...
    def register_custom_ops_library(self, path: str, /) -> None: ...


class InferenceSession(Protocol):
    def get_providers(self) -> list[str]: ...
    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    def get_overridable_initializers(self) -> Sequence[NodeArg]: ...
    def run(self, names: Sequence[str], feed: Feed, /) -> list[np.ndarray]: ...
    def run_with_iobinding(self, binding: Binding, /) -> None: ...
    def io_binding(self) -> Binding: ...
    def end_profiling(self) -> str: ...
    def get_modelmeta(self) -> ModelMeta: ...
    def get_provider_graph_assignment_info(self) -> Sequence[ProviderNodes]: ...
