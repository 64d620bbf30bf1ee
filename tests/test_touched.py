from __future__ import annotations

from tests.touched import ROOT, nearest


def test_the_tests_nearest_to_a_change_come_first() -> None:
    files = [ROOT / "tests" / name for name in (
        "test_dtypes.py", "store/test_store.py", "execute/test_step.py", "sources/test_scan.py",
    ) if (ROOT / "tests" / name).exists()]  # fmt: skip
    changed = ["tests/test_dtypes.py", "optkit/ground/store/digests.py", "docs/reference/limits.md"]
    found = [path.name for path in nearest(files, changed)]
    assert found[:2] == ["test_dtypes.py", "test_store.py"]
    assert nearest(files, ["docs/reference/limits.md"]) == []
    assert nearest(files, ["optkit/ground/store/digests.py"])[0].name == "test_store.py"
