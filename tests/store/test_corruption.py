"""A store in which bytes, names and kinds of files have changed: no wrong bytes are served, and a
rerun gives the right ones."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from optkit.ground.store import Store, digest_json
from tests.figures import Figures

# by name; one is empty, one is larger than the buffers of a reader
FILES = {"a.bin": 700, "deep/b.bin": 40, "deep/er/c.bin": 300_000, "empty": 0}
ENTRIES = 6


def key_of(number: int) -> str:
    return digest_json(["entry", number])


def contents(number: int) -> dict[str, bytes]:
    rng = random.Random(number)
    return {name: rng.randbytes(size) for name, size in FILES.items()}


def made(store: Store, number: int) -> tuple[dict[str, bytes], bool]:
    """The bytes of an entry as the store serves them, and whether it was a hit."""

    def produce(folder: Path) -> dict[str, object]:
        for name, data in contents(number).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return {"number": number}

    entry, hit = store.make(key_of(number), "say", produce)
    assert entry.meta == {"number": number}
    return {name: entry.file(name).read_bytes() for name in entry.files}, hit


# --- damage: each changes `file` of the store in `root` -------------------------------------------


def flip(file: Path, root: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes() or b"\0")
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut(file: Path, root: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(max(1, file.stat().st_size)))


def grow(file: Path, root: Path, rng: random.Random) -> None:
    file.write_bytes(file.read_bytes() + bytes(rng.randint(1, 5000)))


def zero(file: Path, root: Path, rng: random.Random) -> None:
    """A block that was never written."""
    data = bytearray(file.read_bytes())
    start = rng.randrange(max(1, len(data)))
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    file.write_bytes(data)


def empty(file: Path, root: Path, rng: random.Random) -> None:
    os.truncate(file, 0)


def delete(file: Path, root: Path, rng: random.Random) -> None:
    file.unlink()


def other(file: Path, root: Path, rng: random.Random) -> Path:
    """A file of the same kind in another entry."""
    place = file.relative_to(root / "steps")
    files = [path for path in root.glob("steps/*/*/**/*") if path.is_file()]
    return rng.choice(
        [
            path
            for path in files
            if path.name == file.name
            and path.relative_to(root / "steps").parts[1] != place.parts[1]
        ]
    )


def swap(file: Path, root: Path, rng: random.Random) -> None:
    """With the same file of another entry."""
    partner = other(file, root, rng)
    file.rename(root / "aside")
    partner.rename(file)
    (root / "aside").rename(partner)


def stale(file: Path, root: Path, rng: random.Random) -> None:
    """The same file of another entry."""
    shutil.copyfile(other(file, root, rng), file)


def swap_entries(file: Path, root: Path, rng: random.Random) -> None:
    one = root.joinpath("steps", *file.relative_to(root / "steps").parts[:2])
    two = rng.choice([path for path in root.glob("steps/*/*") if path != one])
    one.rename(root / "aside")
    two.rename(one)
    (root / "aside").rename(two)


def unreadable(file: Path, root: Path, rng: random.Random) -> None:
    file.chmod(0)


def link(file: Path, root: Path, rng: random.Random) -> None:
    """To the right bytes outside the store, where anybody may change them."""
    outside = root.parent / f"outside-{rng.getrandbits(64):x}"
    file.rename(outside)
    file.symlink_to(outside)


def dangling(file: Path, root: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(root / "nowhere")


def folder(file: Path, root: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path, root: Path, rng: random.Random) -> None:
    """Opening it would wait for a writer for ever."""
    file.unlink()
    os.mkfifo(file)


def added(file: Path, root: Path, rng: random.Random) -> None:
    (file.parent / "added").write_bytes(b"?")


def linked_entry(file: Path, root: Path, rng: random.Random) -> None:
    entry = root.joinpath("steps", *file.relative_to(root / "steps").parts[:2])
    outside = root.parent / f"entry-{rng.getrandbits(64):x}"
    entry.rename(outside)
    entry.symlink_to(outside)


def filed_entry(file: Path, root: Path, rng: random.Random) -> None:
    entry = root.joinpath("steps", *file.relative_to(root / "steps").parts[:2])
    shutil.rmtree(entry)
    entry.write_bytes(b"no folder")


DAMAGE: tuple[Callable[[Path, Path, random.Random], None], ...] = (
    flip, cut, grow, zero, empty, delete, swap, stale, swap_entries, unreadable, link, dangling,
    folder, pipe, added, linked_entry, filed_entry,
)  # fmt: skip


def seen(root: Path) -> dict[int, object]:
    """What lies under the key of every entry: kinds of files, and bytes as far as they can be
    read."""

    def facts(path: Path) -> object:
        kind = stat.S_IFMT(path.lstat().st_mode)
        readable = stat.S_ISREG(kind) and os.access(path, os.R_OK)
        return kind, path.read_bytes() if readable else None

    places = {
        number: root / "steps" / key_of(number)[:2] / key_of(number) for number in range(ENTRIES)
    }
    return {
        number: [
            (path.relative_to(place), facts(path)) for path in sorted([place, *place.rglob("*")])
        ]
        for number, place in places.items()
    }


def test_no_damage_is_served(tmp_path: Path, figures: Figures) -> None:
    """Every kind of damage at files of every kind, one after the other: the next command rebuilds
    what is damaged and nothing else."""
    rng = random.Random(3)
    root, harmful, quarantined = tmp_path / "store", Counter[str](), 0
    right = {number: contents(number) for number in range(ENTRIES)}
    for number in right:
        made(Store(root), number)
    full = figures.times(3 * len(DAMAGE), 1000)
    for damage in itertools.cycle(DAMAGE):
        sound = seen(root)
        entry = root / "steps" / (key := key_of(rng.randrange(ENTRIES)))[:2] / key
        damage(rng.choice(sorted(p for p in entry.rglob("*") if p.is_file())), root, rng)
        damaged = [number for number, facts in seen(root).items() if facts != sound[number]]
        store = Store(root)  # the next command
        served = {number: made(store, number) for number in right}
        assert {number: data for number, (data, _) in served.items()} == right, damage
        assert [number for number, (_, hit) in served.items() if not hit] == damaged, damage
        assert len(store.warnings) == len(damaged) <= 2
        assert len(list(root.glob("quarantine/*"))) == quarantined + len(damaged)
        quarantined += len(damaged)
        harmful[damage.__name__] += bool(damaged)  # not if the other file was the same, for example
        if harmful.total() == full:
            break
    assert all(
        harmful[damage.__name__] for damage in DAMAGE if damage != unreadable
    )  # root reads it
    how = "bits, lengths, blocks, names, links, pipes, folders, swapped and stale files and entries"
    figures.tell("corrupt entries of the store", full, how)


def test_no_damaged_record_is_recalled(tmp_path: Path, figures: Figures) -> None:
    """It is as none; that of another key is none, too."""
    rng, keys = random.Random(5), [key_of(number) for number in range(3)]
    right = {key: {"schema": "a/v1", "key": digest_json(key)} for key in keys}
    harms = (flip, cut, grow, zero, empty, delete, link, dangling, folder, pipe)
    full = figures.times(40, 1000)
    for turn in range(full):
        root = tmp_path / f"store-{turn}"
        for key in keys:
            Store(root).remember(key, right[key])
        file, neighbour = (root / "records" / f"{key}.json" for key in keys[:2])
        if turn % 5:
            rng.choice(harms)(file, root, rng)
        else:
            shutil.copyfile(neighbour, file)
        store = Store(root)
        assert store.recall(keys[0]) in (None, right[keys[0]])
        assert [store.recall(key) for key in keys[1:]] == [right[key] for key in keys[1:]]
        if not file.is_dir():
            store.remember(keys[0], right[keys[0]])
            assert store.recall(keys[0]) == right[keys[0]]
    figures.tell(
        "corrupt records of the store",
        full,
        "bits, lengths, blocks, links, pipes, folders, records of other keys",
    )
