"""The table of steps: all that a worker may run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from optkit.ground.execute.step import Step, StepResult
from optkit.road.steps.accept import Accept
from optkit.road.steps.adopt import Adopt
from optkit.road.steps.attribute import Attribute
from optkit.road.steps.bench import MeasureLatency
from optkit.road.steps.cache_reach import ObserveCache
from optkit.road.steps.calibrate import Calibrate
from optkit.road.steps.cast import Cast
from optkit.road.steps.check_data import CheckData
from optkit.road.steps.check_finite import CheckFinite
from optkit.road.steps.collect import Collect
from optkit.road.steps.compare import CompareOutputs
from optkit.road.steps.compare_layers import CompareLayers
from optkit.road.steps.compare_sizes import CompareSizes
from optkit.road.steps.compile import Compile
from optkit.road.steps.cover_sizes import CoverSizes
from optkit.road.steps.dequantize import Dequantize
from optkit.road.steps.deviate import Deviate
from optkit.road.steps.divide import Divide
from optkit.road.steps.draw import Draw
from optkit.road.steps.evaluate import Evaluate
from optkit.road.steps.export import Export
from optkit.road.steps.fuse import Fuse
from optkit.road.steps.given_ranges import TakeRanges
from optkit.road.steps.import_quantized import ImportQuantized
from optkit.road.steps.kv_cache import QuantizeCache
from optkit.road.steps.lower import Lower
from optkit.road.steps.measure_card import MeasureCard
from optkit.road.steps.noisy_nodes import FindNoisyNodes
from optkit.road.steps.ort import ToOrt
from optkit.road.steps.outline import Outline
from optkit.road.steps.outputs import KeepOutputs
from optkit.road.steps.padding import CountPadding
from optkit.road.steps.peak import MeasurePeak
from optkit.road.steps.pick import Pick
from optkit.road.steps.predict import PredictLatency
from optkit.road.steps.predict_layers import PredictLayers
from optkit.road.steps.prepare import Prepare
from optkit.road.steps.quantize import Quantize
from optkit.road.steps.quantize_in_order import QuantizeInOrder
from optkit.road.steps.quantize_layers import QuantizeLayers
from optkit.road.steps.random import Random
from optkit.road.steps.repair import RepairGraph
from optkit.road.steps.resize import Resize
from optkit.road.steps.sensitivity import MeasureSensitivity
from optkit.road.steps.shorten import Shorten
from optkit.road.steps.show_worst import ShowWorst
from optkit.road.steps.summary import Summarize
from optkit.road.steps.survey import ListLayers

_ALL: tuple[type[Step[StepResult]], ...] = (
    Export, Adopt, Fuse, Cast, Collect, Divide, Draw, Pick, CheckData, CheckFinite,
    CountPadding, Random, Calibrate, Prepare, Quantize, QuantizeLayers, ToOrt, Accept, Compile,
    Outline, Summarize, KeepOutputs, Evaluate, CompareOutputs, CompareLayers, MeasureLatency,
    MeasurePeak, MeasureCard,
    PredictLatency, PredictLayers, Attribute, ListLayers, MeasureSensitivity, Deviate,
    RepairGraph, Dequantize,
    ImportQuantized, ShowWorst, TakeRanges, Shorten, QuantizeCache, FindNoisyNodes,
    ObserveCache, QuantizeInOrder, Lower, Resize, CoverSizes, CompareSizes,
)  # fmt: skip

STEPS: Mapping[str, type[Step[StepResult]]] = MappingProxyType({step.name: step for step in _ALL})
