"""The store keeps finished steps by content. To resume a command, run it again.

    root/objects/ab/<sha256>        foreign files, copied in by `intake`; files from other machines
    root/steps/ab/<key>/            one published step: its files and entry.json
    root/records/<key>.json         what user code yielded last time, earlier trials of a search
    root/devices/                   what a library learned on a GPU: timings, kernels, engines (no
                                    result)
    root/tmp/<pid>-<host>-<random>/ work in progress, private
    root/locks/<key>.lock           flock, one builder per key
    root/quarantine/                entries whose bytes did not match
    root/users/<pid>-<host>-<random> who uses the store, and since when

To publish an entry, the store writes it into tmp, syncs it to disk (fsync), renames it and syncs
the folder. A kill at any time leaves no entry or a complete one. Before an entry is used, its files
are compared with the recorded digests. A corrupt entry moves to quarantine, and the step runs
again. `gc` and `clear` keep what running processes have used. Machines exchange entries through a
`Remote`.
"""

from __future__ import annotations

from optkit.ground.store.digests import (
    digest_file,
    digest_json,
    digest_once,
    digest_tree,
    is_shallow,
    remember_digest,
    tree_bytes,
)
from optkit.ground.store.disk import (
    CACHE_OPTION,
    OUT_OPTION,
    durably,
    file_in_the_way,
    fsync_dir,
    fsync_tree,
    io_cause,
    is_scarce,
    make_folder,
    own_name,
    scratch,
    storage_errors,
    write_durably,
)
from optkit.ground.store.entry import Entry
from optkit.ground.store.eviction import compiled_folder
from optkit.ground.store.folder import Meta, Store, default_root
from optkit.ground.store.leases import Lease
from optkit.ground.store.remote import DamagedFile, Remote, RemoteLost, RemoteReadOnly

__all__ = [
    "CACHE_OPTION", "OUT_OPTION",
    "DamagedFile", "Entry", "Lease", "Meta", "Remote", "RemoteLost", "RemoteReadOnly", "Store",
    "compiled_folder", "default_root", "digest_file", "digest_json", "digest_once", "digest_tree",
    "durably", "file_in_the_way", "fsync_dir", "fsync_tree", "io_cause",
    "is_scarce", "is_shallow", "make_folder", "own_name", "remember_digest", "scratch",
    "storage_errors", "tree_bytes", "write_durably",
]  # fmt: skip
