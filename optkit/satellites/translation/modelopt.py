"""What options of ModelOpt's quantization of ONNX models mean together."""

from __future__ import annotations

from optkit.satellites.translation import precision
from optkit.satellites.translation.draft import TranslationDraft, chosen_name

_METHOD = "calibration.method"
_WEIGHTS = "quantization.weights"
_QUANTIZED = frozenset({"Conv", "Gemm", "MatMul"})
_ROUNDING = {"awq": "AWQ without the search for a clipped range", "rtn": "rounding to nearest"}


def settle(draft: TranslationDraft) -> None:
    """Complete a translation with what follows from several options."""
    precision.choose(draft, "int8", "no --quantize_mode")
    for entry in draft.of("--calibration_method"):
        chosen = chosen_name(entry.row, entry.value or "") if entry.row else ""
        if chosen in _ROUNDING:  # a method for weights, of INT4
            draft.keys.pop(_METHOD, None)
            entry.overridden_by = None
            draft.set_key(entry, _WEIGHTS, chosen)
            entry.reason = _ROUNDING[chosen]
    for entry in draft.of("--calibration_data_path"):
        file = entry.value or ""
        if file.endswith(".npy") and "--calibration" in draft.options:
            del draft.options["--calibration"]
            entry.refuse(
                "an .npy file does not say for which input it is",
                "save the array by the name of the input: "
                f"numpy.savez('{file[:-1]}z', NAME=numpy.load('{file}'))",
            )
    for entry in draft.of("--op_types_to_quantize"):
        wanted = set((entry.value or "").split())
        if not wanted >= _QUANTIZED:
            entry.refuse(
                f"optkit also quantizes {' and '.join(sorted(_QUANTIZED - wanted))}",
                "exclude nodes by name, e.g. --set 'quantization.nodes={\"*conv*\":fp16}'",
            )
        elif wanted - _QUANTIZED:
            entry.reason = f"{' and '.join(sorted(wanted - _QUANTIZED))}: by the backend's rules"
