from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optkit.show.report import figures
from optkit.show.report.drawing.scatter import (
    Box,
    Mark,
    PointLabel,
    ScatterPoint,
    scatter,
    unbeaten,
)

builds = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 2.0]),
        st.sampled_from([0.1, 0.2]), st.sampled_from([None, 10, 20]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def points(rows: list[tuple[str, float, float, int | None]]) -> list[ScatterPoint]:
    return [
        ScatterPoint(number, f"{group} {number}", group, ms, score, size, "measured")
        for number, (group, ms, score, size) in enumerate(rows)
    ]


@given(builds, st.booleans())
def test_what_is_not_beaten_is_best_for_some_reader(
    rows: list[tuple[str, float, float, int | None]], lower: bool
) -> None:
    found = points(rows)
    best = unbeaten(found, lower_is_better=lower)

    def key(one: ScatterPoint) -> tuple[float, float, float]:
        return (one.latency_ms, one.score if lower else -one.score,
                float("inf") if one.bytes is None else one.bytes)  # fmt: skip

    for one in found:
        rivals = [key(other) for other in found if other.group == one.group]
        worse = any(k != key(one) and all(a <= b for a, b in zip(k, key(one), strict=True))
                    for k in rivals)  # fmt: skip
        assert (one.number in best) == (not worse)


@given(builds)
def test_the_drawing_keeps_its_points_inside(
    rows: list[tuple[str, float, float, int | None]],
) -> None:
    drawn = scatter(points(rows), "top1", figures.percent)
    assert (drawn is None) == (len(rows) < 2)
    if drawn is None:
        return
    assert all(0 < dot.at < 100 and 0 < dot.height < 100 for dot in drawn.dots)
    assert len(drawn.ticks) >= 2
    assert sum(dot.best for dot in drawn.dots) == len(drawn.best)


def test_where_lower_is_better_it_is_drawn_higher() -> None:
    drawn = scatter(points([("a", 1.0, 5.0, 1), ("a", 2.0, 4.0, 1)]), "perplexity", str,
                    lower_is_better=True)  # fmt: skip
    assert drawn is not None
    assert drawn.dots[0].height < drawn.dots[1].height
    assert "lower is better" in drawn.up and len(drawn.lines) == 1


HEIGHT = 260
# of the panel on a wide page, and from a phone to a page that is nearly wide
WIDTHS = {"wide": (1_240,), "narrow": (300, 343, 450, 660, 900, 1_150)}


def builds_at(*builds: tuple[str, float, float]) -> list[ScatterPoint]:
    return [
        ScatterPoint(number, name, name.split()[0], ms, score, 1_000_000, "predicted")
        for number, (name, ms, score) in enumerate(builds, 1)
    ]


def boxes(dots: tuple[Mark, ...], page: str, width: float) -> list[Box]:
    """The rectangles of the labels, as an SVG places them."""
    found = []
    for dot in dots:
        label: PointLabel | None = getattr(dot, page)
        if label is None:
            continue
        x = dot.at * width / 100 + label.right
        y = (100 - dot.height) * HEIGHT / 100 + label.down
        length = 7.3 * len(label.text)
        left = {"start": x, "middle": x - length / 2, "end": x - length}[label.anchor]
        found.append((left, y - 12, left + length, y + 3))
    return found


def apart(one: Box, other: Box) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_points_far_apart_are_all_named() -> None:
    drawn = scatter(builds_at(("l4 fp16", 1.0, 0.9), ("l4 int8", 3.0, 0.8)), "top1", str)
    assert drawn is not None
    assert [dot.wide.text for dot in drawn.dots if dot.wide] == ["l4 fp16", "l4 int8"]
    assert [dot.narrow.text for dot in drawn.dots if dot.narrow] == ["1", "2"]


def test_points_at_one_place_have_numbers_apart() -> None:
    """Two builds of nearly the same latency and score, on a phone."""
    drawn = scatter(builds_at(("fp16", 1.0, 0.9), ("int8", 3.0, 0.8), ("fp8", 1.01, 0.9)), "f", str)
    assert drawn is not None
    assert [dot.narrow.text for dot in drawn.dots if dot.narrow] == ["1", "2", "3"]


named = st.tuples(
    st.text("abc 48", min_size=1, max_size=24), st.floats(0.1, 10), st.floats(0.5, 0.99)
)


@given(st.lists(named, min_size=2, max_size=9))
def test_no_label_covers_another_or_leaves_the_drawing(
    some: list[tuple[str, float, float]],
) -> None:
    drawn = scatter(builds_at(*((f"t {name}", ms, score) for name, ms, score in some)), "top1", str)
    assert drawn is not None
    for page, width in ((page, width) for page, widths in WIDTHS.items() for width in widths):
        taken = boxes(drawn.dots, page, width)
        assert all(left >= 0 and right <= width for left, _, right, _ in taken)
        assert all(apart(one, other) for n, one in enumerate(taken) for other in taken[:n])
        for dot in drawn.dots:
            x, y = dot.at * width / 100, (100 - dot.height) * HEIGHT / 100
            circle = (x - dot.radius, y - dot.radius, x + dot.radius, y + dot.radius)
            assert all(apart(circle, one) for one in taken)
