"""The table of steps: all that a worker may run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from optkit.execute.step import Step, StepResult
from optkit.steps.accept import Accept
from optkit.steps.adopt import Adopt
from optkit.steps.attribute import Attribute
from optkit.steps.bench import MeasureLatency
from optkit.steps.calibrate import Calibrate
from optkit.steps.cast import Cast
from optkit.steps.check_data import CheckData
from optkit.steps.check_finite import CheckFinite
from optkit.steps.collect import Collect
from optkit.steps.compare import CompareOutputs
from optkit.steps.compare_layers import CompareLayers
from optkit.steps.compare_sizes import CompareSizes
from optkit.steps.compile import Compile
from optkit.steps.cover_sizes import CoverSizes
from optkit.steps.dequantize import Dequantize
from optkit.steps.deviate import Deviate
from optkit.steps.divide import Divide
from optkit.steps.draw import Draw
from optkit.steps.evaluate import Evaluate
from optkit.steps.export import Export
from optkit.steps.fuse import Fuse
from optkit.steps.given_ranges import TakeRanges
from optkit.steps.import_quantized import ImportQuantized
from optkit.steps.kv_cache import QuantizeCache
from optkit.steps.lower import Lower
from optkit.steps.noisy_nodes import FindNoisyNodes
from optkit.steps.ort import ToOrt
from optkit.steps.outline import Outline
from optkit.steps.outputs import KeepOutputs
from optkit.steps.padding import CountPadding
from optkit.steps.peak import MeasurePeak
from optkit.steps.pick import Pick
from optkit.steps.predict import PredictLatency
from optkit.steps.predict_layers import PredictLayers
from optkit.steps.prepare import Prepare
from optkit.steps.quantize import Quantize
from optkit.steps.quantize_in_order import QuantizeInOrder
from optkit.steps.quantize_layers import QuantizeLayers
from optkit.steps.random import Random
from optkit.steps.repair import RepairGraph
from optkit.steps.resize import Resize
from optkit.steps.sensitivity import MeasureSensitivity
from optkit.steps.shorten import Shorten
from optkit.steps.show_worst import ShowWorst
from optkit.steps.summary import Summarize
from optkit.steps.survey import ListLayers

_ALL: tuple[type[Step[StepResult]], ...] = (
    Export, Adopt, Fuse, Cast, Collect, Divide, Draw, Pick, CheckData, CheckFinite,
    CountPadding, Random, Calibrate, Prepare, Quantize, QuantizeLayers, ToOrt, Accept, Compile,
    Outline, Summarize, KeepOutputs, Evaluate, CompareOutputs, CompareLayers, MeasureLatency,
    MeasurePeak,
    PredictLatency, PredictLayers, Attribute, ListLayers, MeasureSensitivity, Deviate,
    RepairGraph, Dequantize,
    ImportQuantized, ShowWorst, TakeRanges, Shorten, QuantizeCache, FindNoisyNodes,
    QuantizeInOrder, Lower, Resize, CoverSizes, CompareSizes,
)  # fmt: skip

STEPS: Mapping[str, type[Step[StepResult]]] = MappingProxyType({step.name: step for step in _ALL})
