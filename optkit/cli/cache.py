"""`optkit cache`: what the store holds, whether it is sound, and making room."""

from __future__ import annotations

import time
from pathlib import Path

import click

from optkit.cli import options
from optkit.store import eviction
from optkit.workspace import Workspace


@click.group()
def cache() -> None:
    """Manage the store of finished steps: list, verify, trim, clear."""


_folder = click.option(
    "--cache",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The store; default $OPTKIT_CACHE or the user's cache folder.",
)


@cache.command("ls")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def ls(folder: Path | None, as_json: bool) -> None:
    """List the entries: step, size, last use."""
    from optkit.cli import terminal

    store = Workspace(folder).store()
    entries = list(store.entries())
    if as_json:
        rows = [
            {"key": key, "step": step, "bytes": size, "used": used}
            for key, step, size, used in entries
        ]
        terminal.put_json({"schema": "optkit.cache/v1", "root": str(store.root), "entries": rows})
        return
    lines = [
        [key[:12], step, f"{size / 2**20:.2f} MiB", _ago(used)] for key, step, size, used in entries
    ]
    terminal.put(terminal.table(["key", "step", "size", "last used"], lines))
    total = sum(size for _, _, size, _ in entries)
    terminal.put(f"{len(entries)} entries, {total / 2**20:.1f} MiB, {store.root}")


@cache.command("verify")
@_folder
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def verify(folder: Path | None, as_json: bool) -> int:
    """Verify every entry. A corrupt one moves to quarantine (exit 7); a build makes it again."""
    from optkit.cli import terminal

    sound, corrupt = Workspace(folder).store().verify()
    if as_json:
        terminal.put_json({"schema": "optkit.cache/v1", "sound": sound, "corrupt": corrupt})
    else:
        terminal.put(f"{sound} sound, {len(corrupt)} corrupt")
        for key in corrupt:
            terminal.put(f"  {key[:12]} was moved to quarantine")
    return 7 if corrupt else 0


@cache.command("gc")
@_folder
@click.option(
    "--max-size",
    default="10G",
    show_default=True,
    metavar="SIZE",
    callback=lambda c, p, v: options.parse_size(v),
    help="Largest size of the store.",
)
def gc(folder: Path | None, max_size: int) -> None:
    """Remove abandoned work, quarantine, and the least recently used entries beyond --max-size.

    Entries that were used within the last hour, or that a running command uses, stay.
    """
    from optkit.cli import terminal

    removed, freed = eviction.gc(Workspace(folder).store(), max_size)
    terminal.put(f"removed {removed}, freed {freed / 2**20:.1f} MiB")


@cache.command("clear")
@_folder
@click.option(
    "--step",
    metavar="NAME",
    help="Only the results of this step, e.g. bench, so that latencies are measured again.",
)
def clear(folder: Path | None, step: str | None) -> None:
    """Remove everything in the store that no running command uses."""
    from optkit.cli import terminal
    from optkit.errors import unknown_name
    from optkit.steps import STEPS

    if step is not None and step not in STEPS:
        raise unknown_name("step", step, STEPS, where="--step")
    store = Workspace(folder).store()
    if step is not None:
        terminal.put(f"freed {eviction.forget(store, step) / 2**20:.1f} MiB, {store.root}")
        return
    freed, kept = eviction.clear(store)
    used = f", kept {kept / 2**20:.1f} MiB that running commands use" if kept else ""
    terminal.put(f"freed {freed / 2**20:.1f} MiB{used}, {store.root}")


def _ago(used: float) -> str:
    minutes = (time.time() - used) / 60
    if minutes < 60:
        return f"{minutes:.0f} min ago"
    return f"{minutes / 60:.0f} h ago" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d ago"
