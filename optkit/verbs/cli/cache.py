"""`optkit cache`: lists and verifies the entries of the store, and frees space."""

from __future__ import annotations

import time
from pathlib import Path

from optkit.facts.errors import unknown_name
from optkit.ground.store import eviction
from optkit.ground.workspace import Workspace
from optkit.verbs.cli import command_output


def ls(folder: Path | None, as_json: bool) -> None:
    store = Workspace(folder).store()
    entries = list(store.entries())
    if as_json:
        from optkit.facts.documents.store_entries import CACHE, EntryRow, StoreEntries

        rows = tuple(
            EntryRow(key=key, step=step, bytes=size, used=used) for key, step, size, used in entries
        )
        command_output.put_json(StoreEntries(schema=CACHE, root=str(store.root), entries=rows))
        return
    lines = [
        [key[:12], step, f"{size / 2**20:.2f} MiB", _ago(used)] for key, step, size, used in entries
    ]
    command_output.put(command_output.table(["key", "step", "size", "last used"], lines))
    total = sum(size for _, _, size, _ in entries)
    command_output.put(f"{len(entries)} entries, {total / 2**20:.1f} MiB, {store.root}")


def verify(folder: Path | None, as_json: bool) -> int:
    sound, corrupt = Workspace(folder).store().verify()
    if as_json:
        from optkit.facts.documents.store_entries import CACHE, StoreCheck

        command_output.put_json(StoreCheck(schema=CACHE, sound=sound, corrupt=tuple(corrupt)))
    else:
        command_output.put(f"{sound} sound, {len(corrupt)} corrupt")
        for key in corrupt:
            command_output.put(f"  {key[:12]} was moved to quarantine")
    return 7 if corrupt else 0


def gc(folder: Path | None, max_size: int) -> None:
    removed, freed = eviction.gc(Workspace(folder).store(), max_size)
    command_output.put(f"removed {removed}, freed {freed / 2**20:.1f} MiB")


def clear(folder: Path | None, step: str | None) -> None:
    from optkit.road.steps.step_table import (
        STEPS,  # loads numpy, which the other commands do not need
    )

    if step is not None and step not in STEPS:
        raise unknown_name("step", step, STEPS, where="--step")
    store = Workspace(folder).store()
    if step is not None:
        command_output.put(f"freed {eviction.forget(store, step) / 2**20:.1f} MiB, {store.root}")
        return
    freed, kept = eviction.clear(store)
    used = f", kept {kept / 2**20:.1f} MiB that running commands use" if kept else ""
    command_output.put(f"freed {freed / 2**20:.1f} MiB{used}, {store.root}")


def _ago(used: float) -> str:
    minutes = max(0.0, time.time() - used) / 60  # the clock may have gone back
    if minutes < 60:
        return f"{minutes:.0f} min ago"
    return f"{minutes / 60:.0f} h ago" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d ago"
