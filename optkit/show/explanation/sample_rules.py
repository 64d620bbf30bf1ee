"""Rules about the samples: padding that is computed, and calibration samples unlike the others."""

from __future__ import annotations

from collections.abc import Iterator

from optkit.facts.documents.explanation import ExplainFinding, RecipeChange
from optkit.facts.documents.report import PaddedTokens
from optkit.facts.evidence import Evidence
from optkit.show.explanation.accuracy_loss import Pairs
from optkit.show.explanation.quantization_gains import slow
from optkit.show.explanation.subject import Subject
from optkit.show.explanation.words import advice, several

MUCH = 0.25  # of the tokens: below, shorter samples gain little and long ones may be cut
_EIGHT = 8  # tokens: sizes are rounded up to a multiple


def padding(subject: Subject) -> Iterator[ExplainFinding]:
    """Tokens that are computed though nothing reads them: the model is tuned for more tokens than
    the samples have. The time of padding is at least its share of the tokens, because attention
    grows with the square of their number."""
    tokens = subject.report.padding
    if subject.times is None or tokens is None:
        return
    computed = _computed(subject, tokens)
    share = 1 - tokens.real / computed if computed else 0.0
    if share < MUCH:
        return
    wanted = min(-(-tokens.most // _EIGHT) * _EIGHT, int(computed))
    yield slow(
        subject,
        "padding",
        (),
        share * subject.total_ms,
        what=f"{computed - tokens.real:.0f} of {computed:.0f} tokens are padding: a sample has "
        f"{tokens.real:.3g} real tokens on average, and 95 of 100 have at most {tokens.most} "
        f"({tokens.samples} samples, input {tokens.input})",
        why="padding takes the time of real tokens, and nothing reads what is computed there",
        change=_shorter(subject, tokens, wanted),
        evidence=Evidence.PREDICTED,
    )


def other_calibration_data(subject: Subject) -> Iterator[ExplainFinding]:
    """Ranges that are too small or too large because the calibration samples have another
    distribution than those of the evaluation. More of the same samples would not help."""
    data = subject.other_data
    groups = [Pairs.of(subject, "clipped"), Pairs.of(subject, "coarse")]
    worst = max((one for one in groups if one), key=lambda one: one.share, default=None)
    if data is None or worst is None:
        return
    wrong = "too small" if worst.fault == "clipped" else "too large"
    yield worst.finding(
        rule="other_calibration_data",
        what="the calibration samples have another distribution than those of the evaluation: "
        f"input {data.input}: {data.what}",
        why=f"ranges follow the calibration samples: {several(len(worst.rows), 'range')} "
        f"{'is' if len(worst.rows) == 1 else 'are'} {wrong} for other samples",
        change=advice(
            "use the same preprocessing for the calibration samples as for the evaluation; more "
            "samples of the same kind do not help"
        ),
    )


def _computed(subject: Subject, tokens: PaddedTokens) -> float:
    """The tokens of a sample for which the times of the layers are."""
    axis = subject.recipe.axis_ranges().get(tokens.axis or "")
    return tokens.given if axis is None else axis.opt


def _shorter(subject: Subject, tokens: PaddedTokens, wanted: int) -> RecipeChange:
    if tokens.axis is None:
        return advice(
            f"export the model with a free axis of tokens, pad each batch only to its longest "
            f"sample, and tune for {wanted} tokens"
        )
    axes = subject.recipe.axes
    span = axes.get(tokens.axis)
    settings: dict[tuple[str, ...], object] = {}
    if span is not None and span.min <= wanted:
        settings = {("axes", tokens.axis): {"min": span.min, "opt": wanted, "max": span.max}}
    return advice(
        f"tune for {wanted} tokens, and pad each batch only to its longest sample; the longest of "
        f"these samples has {tokens.longest}",
        settings,
    )
