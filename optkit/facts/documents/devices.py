"""Devices: all that optkit knows (`optkit targets`), one with its sources (`optkit targets NAME`),
and those of this machine (`optkit devices`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.device_facts import CpuInfo, Fact, Option, Price, Support
from optkit.facts.documents.record import Number, Record, Rows, said

TARGETS: Final = "optkit.targets/v1"
DEVICES: Final = "optkit.devices/v1"


class TargetRow(Record):
    """A device in the list of all. A figure is null if it is unknown."""

    name: str
    title: str
    aliases: Rows[str]
    compute_capability: str | None = None
    machine: Annotated[str | None, said("Of a CPU: x86_64, aarch64, …")] = None
    features: Annotated[Rows[str], said("Of a CPU: the instructions that programs may use.")]
    memory_bytes: int | None = None
    bandwidth: Annotated[Number | None, said("Of the memory, in bytes per second.")] = None
    precisions: Annotated[Rows[str], said("Those that can be built.")]
    backends: Rows[str]


class Targets(Record):
    """The devices that optkit knows: `optkit targets`."""

    schema_: Literal["optkit.targets/v1"] = Field(alias="schema")
    targets: Rows[TargetRow]


class DeviceFacts(Record):
    """One device, each figure with its source: `optkit targets NAME`."""

    schema_: Literal["optkit.devices/v1"] = Field(alias="schema")
    name: str
    title: str
    vendor: str
    arch: str
    aliases: Rows[str]
    backends: Annotated[Rows[Option], said("The first is preferred.")]
    facts: Mapping[str, Fact]
    peaks: Annotated[Mapping[str, Fact], said("By dtype: dense TFLOP/s or TOP/s.")]
    precisions: Mapping[str, Support]
    sustained: Annotated[Mapping[str, Fact], said("TFLOP/s that matrix products reached.")]
    ops_per_cycle: Annotated[Mapping[str, Fact], said("Of a CPU: per physical core.")]
    kernels: Annotated[Mapping[str, Fact], said("Of a CPU: 10⁹ operations per second of a core.")]
    prices: Rows[Price]
    machine: Annotated[str | None, said("Of a CPU: x86_64, aarch64, …")] = None
    features: Rows[str]
    sources: Annotated[dict[str, str], said("The text of each source that a figure names.")]


class GpuRow(Record):
    """A GPU of this machine, as its driver reports it."""

    index: int
    name: str
    memory_bytes: Annotated[int | None, said("Null if it shares the memory of the CPU.")] = None
    compute_capability: str
    driver: str | None = None
    bf16: bool
    fp8: bool
    target: Annotated[str | None, said("Its name in the list of devices.")] = None


class Devices(Record):
    """The devices of this machine: `optkit devices`."""

    schema_: Literal["optkit.devices/v1"] = Field(alias="schema")
    gpus: Rows[GpuRow]
    via: Annotated[Literal["nvml", "torch"] | None, said("The library that reported them.")] = None
    reason: Annotated[str | None, said("Why there is no GPU.")] = None
    cpu: CpuInfo
