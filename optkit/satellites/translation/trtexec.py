"""What flags of trtexec mean together."""

from __future__ import annotations

from optkit.facts.precisions import PRECISIONS
from optkit.satellites.translation import flag_values, precision
from optkit.satellites.translation.draft import FlagAnswer, TranslationDraft

_BOUNDS = {
    "--minShapes": "--min-shapes",
    "--optShapes": "--opt-shapes",
    "--maxShapes": "--max-shapes",
}
# flag → the flags whose shapes it takes if it is missing, best first (as processShapes of trtexec)
_INSTEAD = {
    "--minShapes": ("--optShapes", "--maxShapes"),
    "--optShapes": ("--maxShapes", "--minShapes"),
    "--maxShapes": ("--optShapes", "--minShapes"),
}


def settle(draft: TranslationDraft) -> None:
    """Complete a translation with what follows from several flags."""
    precision.choose(draft, "fp32", "no flag of a precision")
    _layers(draft)
    _shapes(draft)


def _layers(draft: TranslationDraft) -> None:
    """Precisions of layers count if --precisionConstraints says so, and in a quantized graph: its
    other layers have the type of the graph around them."""
    constrained = bool(draft.of("--precisionConstraints"))
    chosen = draft.options.get("--precision")
    for entry in draft.of("--layerPrecisions"):
        wanted = flag_values.layers(entry.value or "")
        unknown = sorted({name for name in wanted.values() if name not in ("fp16", "int8")})
        if not constrained:
            entry.ignore("trtexec ignores it without --precisionConstraints=obey or prefer")
        elif unknown:
            entry.refuse(
                f"a layer that is not quantized is FP16, and not {' or '.join(unknown)}",
                "write fp16; nodes that half precision would damage stay in FP32",
            )
        elif chosen is not None and not PRECISIONS[chosen].quantized:
            entry.refuse(
                f"in {chosen} every node has one type, except those that half precision would "
                "damage",
                "add --int8, or leave it out",
            )
        else:
            continue
        draft.keys.pop("quantization.nodes", None)


def _shapes(draft: TranslationDraft) -> None:
    """Bounds that are missing, and the sizes to measure."""
    given = {flag: entry for flag in _BOUNDS for entry in draft.of(flag)}
    for entry in draft.of("--shapes"):
        if given:
            _measured(draft, entry, given)
    if not given:
        return
    sizes = {flag: flag_values.shapes(entry.value or "") for flag, entry in given.items()}
    for flag, option in _BOUNDS.items():
        if flag not in given:
            source = next(other for other in _INSTEAD[flag] if other in given)
            entry = FlagAnswer(f"(no {flag})", reason=f"trtexec then takes the shapes of {source}")
            draft.set_option(entry, option, flag_values.written(sizes[source]))
            draft.entries.append(entry)


def _measured(draft: TranslationDraft, entry: FlagAnswer, given: dict[str, FlagAnswer]) -> None:
    """--shapes beside a range: the sizes that trtexec measures. optkit measures the axes at their
    opt sizes, and several batch sizes."""
    if draft.options.get("--shapes") == flag_values.written(flag_values.shapes(entry.value or "")):
        del draft.options["--shapes"]
    entry.overridden_by = None
    source = next(f for f in ("--optShapes", *_INSTEAD["--optShapes"]) if f in given)
    tuned, measured = (
        flag_values.shapes(given[source].value or ""),
        flag_values.shapes(entry.value or ""),
    )
    rest = {name: shape[1:] for name, shape in tuned.items()}
    batches = {shape[0] for shape in measured.values()}
    if any(rest.get(name, shape[1:]) != shape[1:] for name, shape in measured.items()) or (
        len(batches) > 1
    ):
        entry.refuse(
            "optkit measures every axis but the batch at its tuned size",
            "give the same sizes in --optShapes",
        )
    else:
        draft.set_key(entry, "bench.batches", [*batches])
