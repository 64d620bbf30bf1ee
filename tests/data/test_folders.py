"""Which files of a folder count: linked folders too, but no circles."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.data.folders import spread


def test_linked_class_folders_count_and_a_circle_ends(tmp_path: Path) -> None:
    for name in ("set/dog", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "one.png").touch()
    (tmp_path / "set/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/dog/back").symlink_to(tmp_path / "set")
    (tmp_path / "set/gone.png").symlink_to(tmp_path / "nowhere")
    found = spread(tmp_path / "set", "images", (".png",), "pictures")
    assert sorted(name for _, name in found) == ["cat", "dog"]
