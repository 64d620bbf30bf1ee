"""The table of targets: one YAML file each in `optkit/devices/data/`, converted to SI units.

A figure is a Fact: value, source id (texts in SOURCES.yaml), and whether it was verified. File
names are target names. The `title`, `aliases` and `reports_as` of a file are on one line each, so
that a search by another name scans lines without parsing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from optkit.facts.card_facts import CardCorrection
from optkit.facts.codec import from_json
from optkit.facts.device_facts import Answer, Fact, Option, Price, Support
from optkit.facts.errors import unknown_name

if TYPE_CHECKING:
    from pydantic import JsonValue

_NO_KERNELS = {
    "onnxruntime-cpu": "has no kernels in ONNX Runtime on this CPU",
    "onnxruntime-coreml": "is not run by ONNX Runtime's CoreML provider",
}

# Facts that no build depends on: they are for predictions only.
_NOT_BUILT_FROM = frozenset({"memory_mib"})
# Backends with which no build compiles: they only run what was built.
_NOT_BUILT_WITH = frozenset({"onnxruntime-tensorrt-rtx"})

FOLDER = Path(__file__).with_name("data")

# The number formats with known peaks; not all of them are dtypes of tensors.
_PEAK_DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "fp6", "fp4")


@dataclass(frozen=True)
class Target:
    """One device. Mappings keep the source of each figure; properties return SI units (bytes,
    bytes/s).

    `identity` has everything that makes two targets different for a build; sources, notes and
    prices do not.
    """

    name: str
    title: str
    vendor: str
    arch: str
    aliases: tuple[str, ...]
    backends: tuple[Option, ...]  # in order of preference
    facts: Mapping[str, Fact]
    peaks: Mapping[str, Fact]  # dense TFLOP/s or TOP/s; a dtype without hardware is absent
    precisions: Mapping[str, Support]
    sustained: Mapping[str, Fact] = field(default_factory=dict)  # TFLOP/s that GEMMs reached
    ops_per_cycle: Mapping[str, Fact] = field(default_factory=dict)  # CPU kinds: per physical core
    kernels: Mapping[str, Fact] = field(default_factory=dict)  # CPU kinds: G/s of one core
    prices: tuple[Price, ...] = ()
    machine: str | None = None  # of CPUs: x86_64, aarch64, …
    features: tuple[str, ...] = ()  # of CPUs: the instructions that programs may assume
    identity: Mapping[str, JsonValue] = field(default_factory=dict)
    card: CardCorrection | None = None  # for predictions: of kernels that the user has measured

    @property
    def is_cpu(self) -> bool:
        """Whether it is this machine's CPU or a kind of CPU."""
        return self.machine is not None

    @property
    def compute_capability(self) -> str | None:
        """For example "8.9"; None if it has none (CPUs, other vendors)."""
        value = self._value("compute_capability")
        return None if value is None else str(value)

    @property
    def memory_bytes(self) -> int | None:
        """The memory that the driver reports; if that is unknown, the marketed memory."""
        return self._scaled("memory_mib", 2**20) or self.marketed_memory_bytes

    @property
    def marketed_memory_bytes(self) -> int | None:
        """The marketed memory, in decimal units, which is never more than the driver reports. Build
        options depend on it, so they do not change with the memory that drivers reserve."""
        return self._scaled("memory_gb", 10**9)

    @property
    def bandwidth(self) -> float | None:
        """Peak memory bandwidth in bytes per second."""
        value = self._scaled("bandwidth_gbs", 10**9)
        return None if value is None else float(value)

    @property
    def l2_bytes(self) -> int | None:
        return self._scaled("l2_mb", 2**20)

    @property
    def sm_count(self) -> int | None:
        return self._scaled("sm_count", 1)

    @property
    def tdp_w(self) -> int | None:
        return self._scaled("tdp_w", 1)

    def peak(self, dtype: str) -> float | None:
        """Dense peak in FLOP/s (integers: OP/s), one multiply-add = 2. None: no such hardware, or
        unknown. Weight-only schemes compute in FP16, so the INT4 rate does not matter. Raises
        UnknownName."""
        if dtype not in _PEAK_DTYPES:
            raise unknown_name("dtype", dtype, _PEAK_DTYPES)
        fact = self.peaks.get(dtype)
        return None if fact is None or fact.value is None else float(fact.value) * 1e12

    def supports(self, precision: str) -> bool:
        """Whether the target's matrix allows the precision. Raises UnknownName (no such column)."""
        return self.support(precision).answer not in ("no", "unknown")

    def why_not(self, precision: str, *, of: str | None = None) -> str | None:
        """Why the target does not support the precision, in words; None if it does. `of`: the thing
        that needs this column of the matrix, if it has another name."""
        if self.supports(precision):
            return None
        return f"{of or precision} {self.support(precision).reason}"

    def support(self, precision: str) -> Support:
        if precision not in self.precisions:
            raise unknown_name("precision", precision, self.precisions)
        return self.precisions[precision]

    @property
    def default_backends(self) -> tuple[Option, ...]:
        """The backends of a build: all up to the first one that is documented for this board."""
        chosen = []
        for option in self.backends:
            chosen.append(option)
            if option.documented:
                break
        return tuple(chosen)

    def fingerprint(self) -> dict[str, JsonValue]:
        """The identity for a digest: JSON types only, without sources, notes and prices."""
        return dict(self.identity)

    def cited(self) -> dict[str, str]:
        """The texts of the sources that its figures and prices name."""
        groups = (self.facts, self.peaks, self.sustained, self.ops_per_cycle, self.kernels)
        used = {fact.source for group in groups for fact in group.values()}
        used |= {price.source for price in self.prices}
        texts = sources()
        return {key: texts[key] for key in sorted(used)}

    def _value(self, key: str) -> float | int | str | None:
        fact = self.facts.get(key)
        return None if fact is None else fact.value

    def _scaled(self, key: str, unit: int) -> int | None:
        value = self._value(key)
        return None if value is None else round(float(value) * unit)


def data_names() -> tuple[str, ...]:
    """Names of the targets with data files. Files with names in capitals are other tables."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml") if p.stem == p.stem.lower()))


def aliases() -> Mapping[str, str]:
    """Alias → target name."""
    return _line_index("aliases")


def reported_names() -> dict[str, str]:
    """Device name as drivers report it, in lower case → target name."""
    return {name.lower(): target for name, target in _line_index("reports_as").items()}


def titles() -> Mapping[str, str]:
    """Title without the text in brackets → target name."""
    return _line_index("title")


def device_names(target: str) -> tuple[str, ...]:
    """The names that drivers report for the devices of this target."""
    return tuple(name for name, found in _line_index("reports_as").items() if found == target)


@dataclass(frozen=True)
class _Absent:
    """Replaces the peak of a dtype without hardware."""

    supported: Literal[False]
    note: str | None = None


@dataclass(frozen=True)
class _File:
    """A data file. `precisions`: its row of PRECISIONS.yaml; None if optkit compiles nothing for
    it."""

    title: str
    vendor: str
    arch: str
    aliases: tuple[str, ...]
    backends: tuple[Option, ...]
    precisions: str | None
    facts: Mapping[str, Fact]
    reports_as: tuple[str, ...] = ()
    peaks: Mapping[str, Fact | _Absent] = field(default_factory=dict)
    sustained: Mapping[str, Fact] = field(default_factory=dict)
    ops_per_cycle: Mapping[str, Fact] = field(default_factory=dict)
    kernels: Mapping[str, Fact] = field(default_factory=dict)
    prices: tuple[Price, ...] = ()
    machine: str | None = None
    features: tuple[str, ...] | None = None


@cache
def read(name: str) -> Target:
    """The target of data file `name`."""
    data = from_json(_File, _yaml(FOLDER / f"{name}.yaml"))
    capability = data.facts.get("compute_capability")
    peaks = {dtype: fact for dtype, fact in data.peaks.items() if isinstance(fact, Fact)}
    rates = {**peaks, **data.ops_per_cycle}
    precisions = matrix(data.precisions, data.title, str(capability.value) if capability else None)
    features: list[JsonValue] | None = None if data.features is None else [*data.features]
    return Target(
        name=name,
        title=data.title,
        vendor=data.vendor,
        arch=data.arch,
        aliases=data.aliases,
        backends=data.backends,
        facts=MappingProxyType(data.facts),
        peaks=MappingProxyType(peaks),
        precisions=MappingProxyType(precisions),
        sustained=MappingProxyType(data.sustained),
        ops_per_cycle=MappingProxyType(data.ops_per_cycle),
        kernels=MappingProxyType(data.kernels),
        prices=data.prices,
        machine=data.machine,
        features=data.features or (),
        identity=MappingProxyType(
            {
                "name": name,
                "backends": [o.name for o in data.backends if o.name not in _NOT_BUILT_WITH],
                "facts": {k: f.value for k, f in data.facts.items() if k not in _NOT_BUILT_FROM},
                "peaks": {key: fact.value for key, fact in rates.items()},
                "precisions": {key: support.answer for key, support in precisions.items()},
                **({} if data.machine is None else {"machine": data.machine}),
                **({} if features is None else {"features": features}),
            }
        ),
    )


@dataclass(frozen=True)
class _Row:
    """A row of PRECISIONS.yaml."""

    cells: Mapping[str, Answer]
    verified: bool
    note: str | None = None


@cache
def _rows() -> tuple[Mapping[str, _Row], Mapping[str, _Row]]:
    """TensorRT's rows by compute capability, and those of the other backends by name."""
    others = dict(_yaml(FOLDER / "PRECISIONS.yaml"))
    rows = others.pop("tensorrt")
    return from_json(dict[str, _Row], rows), from_json(dict[str, _Row], others)


def matrix(kind: str | None, title: str, capability: str | None) -> dict[str, Support]:
    """Column → Support, from one row of PRECISIONS.yaml. `kind`: None if optkit compiles nothing
    for it."""
    rows, others = _rows()
    if kind is None:
        reason = f"is compiled by no backend of optkit for {title}: figures for comparison only"
        columns = next(iter(rows.values())).cells
        return {column: Support("unknown", False, reason) for column in columns}
    row = rows[str(capability)] if kind == "tensorrt" else others[kind]

    def support(column: str, answer: Answer) -> Support:
        if answer != "no":
            return Support(answer, row.verified, row.note if answer != "yes" else None)
        if kind != "tensorrt":
            return Support("no", row.verified, _NO_KERNELS[kind])
        first = next((cc for cc, other in rows.items() if other.cells[column] != "no"), None)
        reason = f"needs compute capability {first} or newer; {title} has {capability}"
        return Support("no", row.verified, reason)

    return {column: support(column, answer) for column, answer in row.cells.items()}


@cache
def sources() -> Mapping[str, str]:
    """Source id → text."""
    return MappingProxyType(from_json(dict[str, str], _yaml(FOLDER / "SOURCES.yaml")))


@cache
def _line_index(key: str) -> Mapping[str, str]:
    pattern = re.compile(rf"^{key}: (?:\[(.*)\]|\"([^\"(]*))", re.MULTILINE)
    index: dict[str, str] = {}
    for name in data_names():
        found = pattern.search((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        listed = (found[1] or found[2] or "").split(",") if found else []
        index.update({item.strip().strip('"'): name for item in listed if item})
    return index


@cache
def _yaml(path: Path) -> dict[str, object]:
    from ruamel.yaml import YAML  # takes 30 ms, which `optkit --help` does not need

    loaded: dict[str, object] = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    return loaded
