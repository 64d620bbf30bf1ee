"""The rules in the order in which they are applied, and what each reports in words: the source of
docs/reference/findings.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from optkit.craft.benchmarking.doubts import COARSE, FINE_DB, LOST_SQNR, LOW_SQNR
from optkit.facts.documents.explanation import ExplainFinding, Rule
from optkit.show.explanation import (
    accuracy_loss,
    data_movement,
    fixed,
    noisy_layers,
    sample_rules,
    speed,
)
from optkit.show.explanation.subject import Subject

_TIMES = "that of the layer times: measured or predicted"
_PREDICTED = "predicted"
_NOISE = "simulated; as a share of a drop: predicted"
_LEFT_OUT = "the SQNR that the outputs gain without the pairs"
_IN_FP32 = "the SQNR that the outputs gain with the layer in FP32"


@dataclass(frozen=True)
class ListedRule:
    """A rule. `raised`: when it reports a finding; `change`: what to do; `cost`: what the change
    would gain; `evidence`: how the cost is known."""

    name: Rule
    find: Callable[[Subject], Iterator[ExplainFinding]]
    raised: str
    change: str
    cost: str
    evidence: str

    def __call__(self, subject: Subject) -> Iterator[ExplainFinding]:
        return self.find(subject)


RULES = (
    ListedRule(
        "unfused_pair",
        data_movement.unfused_pairs,
        "A Q/DQ pair runs in kernels of its own: codes become floats and then codes again, or "
        "floats only for a sum.",
        "Keep the shortcut in float (`quantization.placement.residual_adds: false`), or remove the "
        "pair from the graph.",
        "the time of these kernels",
        _TIMES,
    ),
    ListedRule(
        "left_in_float",
        speed.left_in_float,
        "A product runs in FP16 or FP32 that was planned in fewer bits, or that lies between "
        "quantized products.",
        "Remove the line of the recipe that keeps it in float, or keep it in the precision of the "
        "baseline, where it loses nothing by rounding.",
        "its time, minus its time in the baseline times the median ratio of the products that "
        "landed",
        _PREDICTED,
    ),
    ListedRule(
        "does_not_pay",
        speed.does_not_pay,
        "The artifact is slower than its baseline.",
        "`optkit tune` finds the layers that are faster when quantized; or ship the baseline.",
        "the difference of the latencies",
        "that of the speedup: measured or predicted",
    ),
    ListedRule(
        "layout",
        data_movement.layout,
        "Kernels only move data: transposes, reorders, concatenations, reshapes that copy.",
        "Keep one order of the axes through the model, or change it so that it needs fewer copies.",
        "their time",
        _TIMES,
    ),
    ListedRule(
        "cast",
        data_movement.casts,
        "Kernels only cast: at the borders of nodes that stay in FP32, or, in an FP32 build, where "
        "the model casts.",
        "Scale the values of the model into the range of FP16; in an FP32 build, remove the cast "
        "from the model.",
        "their time",
        _TIMES,
    ),
    ListedRule(
        "alignment",
        speed.alignment,
        "On a GPU, the summed dimension K of an INT8 or FP8 product is not a multiple of "
        f"{speed.STEP}.",
        f"Make this width of the model a multiple of {speed.STEP}, and pad the weights with zeros.",
        "at most the time that eight bits save in these products",
        _PREDICTED,
    ),
    ListedRule(
        "memory_bound",
        speed.memory_bound,
        "Quantized products wait for memory, and would also in the precision of the baseline.",
        "Use a larger batch, which reads the weights once for more samples, or weights of fewer "
        "bits.",
        "half of the time to read the weights",
        _PREDICTED,
    ),
    ListedRule(
        "heavy_weight",
        speed.heavy_weights,
        f"A float tensor has {speed.HEAVY:.0%} or more of the bytes of all constants.",
        "Quantize it, or store the embedding table in 8 bits (`quantization.embeddings: true`).",
        "half of the time to read it",
        _PREDICTED,
    ),
    ListedRule(
        "slow_operator",
        fixed.slow_operators,
        f"An operator that is no product takes {fixed.RARE:.0%} of the time or more; "
        f"{fixed.COMMON:.0%} for one that most models have (Softmax, a norm, elementwise). Below "
        "half of the time, that one is a limit and no fault.",
        "It depends on the operator: see the table below.",
        "its time",
        _TIMES,
    ),
    ListedRule(
        "written_out",
        fixed.written_out,
        f"{fixed.CHAIN} or more kernels of {fixed.KINDS} or more kinds, one after the other, "
        "compute element by element or reduce, because no fusion rule knows what they compute.",
        "Write it with one function of the framework (gelu, silu, softmax, layer_norm, …).",
        "their time without the longest of them",
        _TIMES,
    ),
    ListedRule(
        "launches",
        fixed.launches,
        f"Starting kernels takes {fixed.DECIDES:.0%} of a call or more. Above {fixed.SMALL} "
        "samples this is a limit and no fault.",
        f"Use a batch of {fixed.MORE} times the size: each kernel then starts once for all of its "
        "samples.",
        f"{fixed.MORE - 1}/{fixed.MORE} of this time",
        _PREDICTED,
    ),
    ListedRule(
        "padding",
        sample_rules.padding,
        f"The samples have {sample_rules.MUCH:.0%} fewer real tokens than the model is tuned for.",
        "Tune for fewer tokens (`axes`), and pad each batch only to its longest sample.",
        "the share of padding of the layers' time; attention gains more",
        _PREDICTED,
    ),
    ListedRule(
        "other_calibration_data",
        sample_rules.other_calibration_data,
        "Ranges are `clipped` or `coarse`, and the check of the data found the calibration samples "
        "unlike those of the evaluation.",
        "Use the same preprocessing for both; more of the same samples do not help.",
        _LEFT_OUT,
        _NOISE,
    ),
    ListedRule(
        "clipped",
        accuracy_loss.clipped,
        f"An activation keeps less than {FINE_DB:.0f} dB, and its range is so small that clipping "
        "makes more noise than rounding.",
        "`calibration.method: minmax`, more `calibration.samples`, or samples that were prepared "
        "like those in use. A range that another tool chose is chosen again there.",
        _LEFT_OUT,
        _NOISE,
    ),
    ListedRule(
        "coarse",
        accuracy_loss.coarse,
        f"An activation keeps less than {FINE_DB:.0f} dB, and its range is {COARSE:.0f} times the "
        "largest magnitude of its values or more, so two bits of each code are unused.",
        "Remove the samples with extreme values from the calibration data. A range that another "
        "tool chose is chosen again there.",
        _LEFT_OUT,
        _NOISE,
    ),
    ListedRule(
        "duplicated",
        accuracy_loss.duplicated,
        "A Q/DQ pair quantizes the output of another pair.",
        "Remove the second pair from the graph.",
        _LEFT_OUT,
        _NOISE,
    ),
    ListedRule(
        "unread",
        accuracy_loss.unread,
        "No quantized product reads the codes of a pair, which makes half or more of the noise at "
        "the outputs.",
        "Keep the shortcut in float (`quantization.placement.residual_adds: false`), or remove the "
        "pair from the graph.",
        _LEFT_OUT,
        _NOISE,
    ),
    ListedRule(
        "weight_axis",
        accuracy_loss.weight_axis,
        "A weight has scales along the summed axis, or one scale whose SQNR is "
        f"{accuracy_loss.ONE_BIT_DB} dB (one bit) below that of one scale per output channel.",
        "Give it one scale per output channel (`quantization.placement.tensor_ops`); until then "
        "keep it in the precision of the baseline (`quantization.nodes`).",
        f"{_IN_FP32}, and the time of a layer that did not land because of it",
        _NOISE,
    ),
    ListedRule(
        "weight_scale",
        accuracy_loss.weight_scale,
        "The scales of a weight leave two bits unused or saturate "
        f"{accuracy_loss.SATURATED:.0%} of its codes, and its SQNR is "
        f"{accuracy_loss.ONE_BIT_DB} dB below that of scales from the maxima of its channels.",
        "Quantize it again; until then keep it in the precision of the baseline "
        "(`quantization.nodes`).",
        _IN_FP32,
        _NOISE,
    ),
    ListedRule(
        "sensitive",
        noisy_layers.sensitive,
        "Layers make much of the noise, and a gate on accuracy failed; or there is no evaluation, "
        f"and the outputs have less than {LOW_SQNR:.0f} dB.",
        "Keep them in the precision of the baseline (`quantization.nodes`).",
        _IN_FP32,
        _NOISE,
    ),
    ListedRule(
        "sensitive",
        noisy_layers.lost,
        "Layers lose their values: with only this layer quantized, its output has less than "
        f"{LOST_SQNR:.0f} dB. It is listed even if it costs nothing.",
        "Keep them in the precision of the baseline (`quantization.nodes`).",
        _IN_FP32,
        _NOISE,
    ),
)
