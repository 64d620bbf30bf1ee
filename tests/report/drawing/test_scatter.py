from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optkit.report import figures
from optkit.report.drawing.scatter import Point, scatter, unbeaten

builds = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from([0.5, 1.0, 2.0]),
        st.sampled_from([0.1, 0.2]), st.sampled_from([None, 10, 20]),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def points(rows: list[tuple[str, float, float, int | None]]) -> list[Point]:
    return [
        Point(number, f"{group} {number}", group, ms, score, size, "measured")
        for number, (group, ms, score, size) in enumerate(rows)
    ]


@given(builds, st.booleans())
def test_what_is_not_beaten_is_best_for_some_reader(
    rows: list[tuple[str, float, float, int | None]], lower: bool
) -> None:
    found = points(rows)
    best = unbeaten(found, lower_is_better=lower)

    def key(one: Point) -> tuple[float, float, float]:
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
