"""What a disk may hold after the power was lost, from the record of `preload.c`.

A file has what it had at its last fsync, and any part of what was written later. A name is on the
disk for certain after an fsync of its folder; before that, each change of names (a new one, a
rename, a removal) may be there or not, whatever became of the others. A rename is one change. This
allows more than ext4, XFS or Btrfs do, which keep the order of changes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Tree = dict[str, bytes | None]
"""Relative path → bytes; None for a folder."""


class Change(NamedTuple):
    """One recorded call that changed something; a "mark" has a promise as its `data`."""

    name: str
    path: str
    other: str
    number: int
    data: bytes


def recorded(file: Path) -> list[Change]:
    raw, at, found = file.read_bytes(), 0, []
    while at < len(raw):
        end = raw.index(b"\n", at)
        name, path, other, number, size = raw[at:end].decode().rsplit("\t", 4)
        at = end + 1 + int(size)
        found.append(Change(name, path, other, int(number), raw[end + 1 : at]))
    return found


@dataclass
class _File:
    synced: bytes = b""
    later: list[tuple[str, int, bytes]] = field(default_factory=list)

    def after(self, count: int, *, cut: bool = False, zeros: bool = False) -> bytes:
        """With the first `count` later writes. `cut`: the last one in half; `zeros`: its length
        alone is there."""
        data = bytearray(self.synced)
        for number, (name, place, written) in enumerate(self.later[:count]):
            if name == "truncate":
                data[place:] = bytes(max(0, place - len(data)))
                continue
            last = number == count - 1
            part = written[: len(written) // 2] if cut and last else written
            part = bytes(len(part)) if zeros else part
            data.extend(bytes(max(0, place - len(data))))
            data[place : place + len(part)] = part
        return bytes(data)


@dataclass
class _Folder:
    names: dict[str, int] = field(default_factory=dict)  # as processes see it
    synced: dict[str, tuple[int, int | None]] = field(default_factory=dict)  # name → (since, node)


@dataclass
class _Names:
    """One change of names: (folder, name, node or None) each."""

    since: int
    entries: list[tuple[int, str, int | None]]


class Disk:
    """The disk beneath `root`, which is safe at the start; `apply` what was recorded, in turn."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._nodes: list[_File | _Folder] = []
        self._pending: list[_Names] = []
        self._now = 0
        self.promises: list[dict[str, Any]] = []
        self._top = self._load(root, {})

    def _load(self, path: Path, known: dict[int, int]) -> int:
        inode = path.stat().st_ino
        if inode in known:
            return known[inode]
        known[inode] = node = len(self._nodes)
        if not path.is_dir():
            self._nodes.append(_File(path.read_bytes()))
            return node
        folder = _Folder()
        self._nodes.append(folder)
        for inner in sorted(path.iterdir()):
            folder.names[inner.name] = self._load(inner, known)
        folder.synced = {name: (0, inner) for name, inner in folder.names.items()}
        return node

    def apply(self, change: Change) -> None:
        self._now += 1
        name, path, other, number, data = change
        if name == "mark":
            self.promises.append(json.loads(data))
        elif name == "create":
            self._enter(path, _File())
        elif name == "mkdir":
            self._enter(path, _Folder())
        elif name in ("write", "truncate"):
            self._file(path).later.append((name, number, data))
        elif name == "fsync":
            file = self._file(path)
            file.synced, file.later = data, []
        elif name == "fsync-folder":
            self._sync(self._node(path))
        elif name == "unlink":
            self._change((path, None))
        elif name == "link":
            self._change((other, self._node(path)))
        elif name == "rename":
            self._change((other, self._node(path)), (path, None))
        else:
            assert name == "exchange", name
            self._change((path, self._node(other)), (other, self._node(path)))

    def _node(self, path: str) -> int:
        node = self._top
        for part in Path(path).relative_to(self._root).parts:
            folder = self._nodes[node]
            assert isinstance(folder, _Folder)
            node = folder.names[part] if part in folder.names else self._unseen(node, part)
        return node

    def _unseen(self, place: int, name: str) -> int:
        """The file that safetensors has written as .tmpXXXXXX: it renames by a system call of its
        own, which is not recorded."""
        folder = self._nodes[place]
        assert isinstance(folder, _Folder)
        draft = next(known for known in folder.names if known.startswith(".tmp"))
        folder.names[name] = node = folder.names.pop(draft)
        self._pending.append(_Names(self._now, [(place, name, node), (place, draft, None)]))
        return node

    def _file(self, path: str) -> _File:
        file = self._nodes[self._node(path)]
        assert isinstance(file, _File)
        return file

    def _enter(self, path: str, node: _File | _Folder) -> None:
        self._nodes.append(node)
        self._change((path, len(self._nodes) - 1))

    def _change(self, *named: tuple[str, int | None]) -> None:
        entries = []
        for path, node in named:
            place, _, name = path.rpartition("/")
            number = self._node(place)
            folder = self._nodes[number]
            assert isinstance(folder, _Folder)
            if node is None:
                folder.names.pop(name, None)
            else:
                folder.names[name] = node
            entries.append((number, name, node))
        self._pending.append(_Names(self._now, entries))

    def _sync(self, folder: int) -> None:
        for names in [n for n in self._pending if any(place == folder for place, *_ in n.entries)]:
            self._pending.remove(names)
            for place, name, node in names.entries:
                inner = self._nodes[place]
                assert isinstance(inner, _Folder)
                inner.synced[name] = (names.since, node)

    def states(self, rng: random.Random, most: int) -> Iterator[Tree]:
        """Legal states of this moment, with `most` choices of the changes of names: all of them if
        they are so few; else none, all, and some with one change more or less, or in their
        order."""
        count = len(self._pending)
        full = (1 << count) - 1
        subsets = set(range(1 << count)) if 1 << count <= most else {0, full}
        single = [1 << n for n in range(count)]
        extreme = [*single, *(full ^ one for one in single), *(one - 1 for one in single)]
        rng.shuffle(extreme)
        for subset in extreme:
            if len(subsets) < most:
                subsets.add(subset)
        seen = set()
        for subset in sorted(subsets):
            for how in ("all", "none", "cut", "zeros", "mixed"):
                tree = self._tree(subset, how, rng)
                if (digest := hash(tuple(sorted(tree.items())))) not in seen:
                    seen.add(digest)
                    yield tree

    def _tree(self, subset: int, how: str, rng: random.Random) -> Tree:
        folders = {n: dict(f.synced) for n, f in enumerate(self._nodes) if isinstance(f, _Folder)}
        for number, names in enumerate(self._pending):
            for place, name, node in names.entries if subset >> number & 1 else ():
                if folders[place].get(name, (-1, None))[0] < names.since:
                    folders[place][name] = (names.since, node)
        tree: Tree = {}
        self._grow(self._top, "", folders, tree, how, rng)
        return tree

    def _grow(
        self, node: int, path: str, folders: dict[int, dict[str, tuple[int, int | None]]],
        tree: Tree, how: str, rng: random.Random,
    ) -> None:  # fmt: skip
        found = self._nodes[node]
        if isinstance(found, _File):
            mode = rng.choice(("all", "none", "cut", "zeros")) if how == "mixed" else how
            count = 0 if mode == "none" else len(found.later)
            tree[path] = found.after(count, cut=mode == "cut", zeros=mode == "zeros")
            return
        if path:
            tree[path] = None
        for name, (_, inner) in folders[node].items():
            if inner is not None:
                self._grow(inner, f"{path}/{name}" if path else name, folders, tree, how, rng)


def write(tree: Tree, target: Path) -> None:
    """A folder on this disk with what the other one held."""
    target.mkdir(parents=True)
    for path, data in tree.items():
        place = target / path
        if data is None:
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
