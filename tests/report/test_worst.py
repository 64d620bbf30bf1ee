"""The pictures on which a build loses most, in its report."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from optkit.facts.documents.pictures import Drawing, WorstPictures
from optkit.facts.documents.report import Report
from optkit.ground.data import thumbnails
from optkit.show.report import worst as drawn
from optkit.show.report.build_page import to_html
from tests.report.test_pages import written

OUTLINE = ((10, 10), (60, 10), (60, 40), (10, 40))


def found(kind: int, score: float, right: bool, at: float = 0.0) -> dict[str, Any]:
    outline = [[x + at, y + at] for x, y in OUTLINE]
    return {"kind": kind, "score": score, "right": right, "outline": outline,
            "points": [[20 + at, 20 + at]]}  # fmt: skip


def annotated(kind: int, baseline: bool, candidate: bool, at: float = 0.0) -> dict[str, Any]:
    outline = [[x + at, y + at] for x, y in OUTLINE]
    return {"kind": kind, "outline": outline, "points": [], "baseline": baseline,
            "candidate": candidate}  # fmt: skip


def picture() -> np.ndarray:
    return np.random.default_rng(0).random((120, 160, 3))


# Two objects, of which INT8 loses one; a wrong detection, and more detections at one place than
# there is room for labels.
OBJECTS = {
    "width": 160, "height": 120, "picture": None, "mask": None,
    "annotated": [annotated(3, True, False), annotated(5, True, True, 50)],
    "baseline": [found(3, 0.91, True), found(5, 0.8, True, 50)],
    "candidate": [found(5, 0.7, True, 50), found(1, 0.4, False, 4),
                  *(found(4, 0.3 + index / 100, False, 30 + index) for index in range(40))],
}  # fmt: skip


def objects() -> dict[str, Any]:
    return {**OBJECTS, "picture": thumbnails.jpeg(picture())}


def regions() -> dict[str, Any]:
    codes = np.arange(120 * 160).reshape(120, 160) // 40 % 4
    mask = thumbnails.png(codes, ((213, 94, 0), (86, 180, 233), (240, 228, 66)))
    return {"width": 160, "height": 120, "picture": thumbnails.jpeg(picture()), "mask": mask,
            "annotated": [], "baseline": [], "candidate": []}  # fmt: skip


def worst(drawing: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    one = {"baseline": 0.9, "candidate": 0.41234, "lost": 1, "gained": 0, "drawing": drawing}
    return {
        "metric": "map", "evidence": "simulated", "unit": "objects", "confidence": 0.25,
        "samples": 512, "worse": 2, "better": 1, "embedded": drawing is not None,
        "pictures": [{**one, "sample": 17}, {**one, "sample": 4, "candidate": 0.5}], **more,
    }  # fmt: skip


def page(data: dict[str, Any] | None) -> str:
    more = {} if data is None else {"worst": data}
    return to_html(Report.from_json({**written("report-l4"), **more}))


def test_a_report_of_an_older_build_has_no_pictures() -> None:
    text = page(None)
    assert 'id="worst"' not in text and "img-src" not in text
    assert "worst" not in Report.from_json(written("report-l4")).to_json()


def test_without_pictures_the_page_has_figures_and_says_how_to_get_them() -> None:
    text = page(worst())
    section = re.search(r'<section id="worst".*?</section>', text, re.S)
    assert section is not None
    assert 'class="badge simulated"' in section[0] and "--embed-pictures" in section[0]
    assert "worse than fp16 on 2 of 512 pictures, and better on 1" in section[0]
    assert 'in fp16 </span><b class="number">0.9000</b>' in section[0]  # of both pictures
    assert re.search(r'row">17</th>.*0\.4123.*0\.4877', section[0])
    assert "<image" not in section[0] and "img-src" not in text


def test_a_page_with_pictures_says_that_they_are_in_it() -> None:
    pytest.importorskip("PIL")
    text = page(worst(objects()))
    assert "img-src data:" in text and "contain these samples of the evaluation data" in text
    assert len(re.findall(r'<image id="picture-\d+"', text)) == 2  # each once, and used twice
    assert text.count('<use href="#picture-17">') == 1
    assert 'aria-label="Picture 17, int8: 1 of 2 objects found, 41 wrong; lost: class 3"' in text
    assert 'aria-label="Picture 17, fp16: 2 of 2 objects found, 0 wrong"' in text
    assert ">lost 3</text>" in text and ">! 1 0.40</text>" in text


def test_pixels_have_one_panel_with_the_change() -> None:
    pytest.importorskip("PIL")
    text = page(worst(regions(), unit="pixels", confidence=None))
    assert 'aria-label="Picture 17: 1 pixels lost, 0 gained"' in text
    assert text.count('class="mask"') == 2 and "wrong in both" in text


def test_without_a_drop_there_is_one_sentence() -> None:
    text = page(worst(pictures=[], worse=0, unit=None, confidence=None))
    assert "worse than fp16 on 0 of 512 pictures" in text and "--embed-pictures" not in text


def test_labels_cover_no_other_label_and_stay_in_the_picture() -> None:
    shown, _ = drawn.drawings(WorstPictures.from_json(worst(OBJECTS)), "fp16", "int8")
    labels = shown.panels[1].labels
    # in all, 43 objects; the lost one has its label first, the wrong ones have theirs as far as
    # there is room
    assert labels[0].text == "lost 3" and 4 < len(labels) < 43
    assert all(0 <= one.x <= one.x + one.width <= shown.width for one in labels)
    assert all(0 <= one.y <= one.y + 15 <= shown.height for one in labels)
    for index, one in enumerate(labels):
        for other in labels[:index]:
            across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            assert across <= 0.11 or abs(one.y - other.y) >= 14.9
    assert (shown.width, shown.height) == (320, 240)
    assert shown.panels[0].lines[0].corners == "20.0,20.0 120.0,20.0 120.0,80.0 20.0,80.0"


@pytest.mark.parametrize("uri", [
    'data:image/png;base64,AAAA" onload="x', "data:image/svg+xml;base64,AAAA",
    "https://example.com/a.png", "data:image/png;base64,AA<script>",
])  # fmt: skip
def test_a_picture_that_is_no_small_data_uri_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError):
        Drawing.from_json({**OBJECTS, "picture": uri})
