"""The files of an artifact on disk: compared with its manifest, and kept from changing between this
check and their use."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from optkit.facts.errors import IntegrityError, located
from optkit.ground.artifact.manifest import MANIFEST, SIGNATURE, File
from optkit.ground.intake.files import copy_in, opened_beneath, show
from optkit.ground.store import default_root, digest_file, scratch

_OTHERS, _GROUP = 0o002, 0o020


def verify(path: Path, listed: Mapping[str, File], *, added: bool) -> None:
    """Raise IntegrityError with the names of files that are missing, changed, added or not
    regular, and of added folders. `added`: other files and folders may be there too."""
    present = dict(_walk(path))
    folders = {str(above) for name in listed for above in PurePosixPath(name).parents}
    kept = {name for name in folders & present.keys() if stat.S_ISDIR(present[name].st_mode)}
    others = [] if added else sorted(present.keys() - listed.keys() - kept)
    problems = [f"{show(name)} was added" for name in others]
    for name, facts in listed.items():
        info = present.get(name)
        if info is None:
            problems.append(f"{name} is missing")
        elif not stat.S_ISREG(info.st_mode):
            problems.append(f"{name} is a link or a folder, not a regular file")
        elif info.st_size != facts.size or digest_file(path / name) != facts.sha256:
            problems.append(f"{name} was changed")
    if problems:
        rest = "build the artifact again, or copy it again from an undamaged copy"
        if len(others) == len(problems):
            rest = "remove what was added: all other files are as the manifest lists them"
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise IntegrityError(", ".join(problems[:5]) + more, where=str(path), hint=rest)


@contextmanager
def held(path: Path, listed: Mapping[str, File], needed: Collection[str]) -> Iterator[Path]:
    """The folder from which to open the `needed` files, which are those of the manifest: the
    artifact itself, or, if another user may change it, a private copy that is hashed while it is
    written. Raises IntegrityError, StorageError, UnsafeFile (a link)."""
    if changeable(path) is None:
        yield path
        return
    with scratch(default_root()) as folder, located(str(path), str(folder)):
        for name in needed:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with opened_beneath(path, name, where=name) as source:
                found = copy_in(source, target, limit_bytes=listed[name].size, where=name)
            if found != (listed[name].sha256, listed[name].size):
                raise IntegrityError(f"{name} was changed while it was opened", where=str(path))
        yield folder


def changeable(path: Path) -> Path | None:
    """What of the artifact, or of the folders above it, a user other than this one and root may
    replace or write; None if nothing."""
    real = path.resolve()
    inner = (real / name for name, _ in _walk(real))
    for place in (real, *inner):
        if _shared(place.lstat()):
            return place
    for place in real.parents:
        info = place.stat()
        # in a sticky folder, such as /tmp, only the owner of an entry may rename it
        if _shared(info) and not (info.st_mode & stat.S_ISVTX and _is_ours(info.st_uid)):
            return place
    return None


def _shared(info: os.stat_result) -> bool:
    """Whether another user may write it. Access control lists show as the bits of the group."""
    mode = 0 if stat.S_ISLNK(info.st_mode) else info.st_mode
    by_group = mode & _GROUP and not _is_private(info.st_gid)
    return not _is_ours(info.st_uid) or bool(mode & _OTHERS or by_group)


def _is_ours(user: int) -> bool:
    return user in (0, os.geteuid())


def _is_private(group: int) -> bool:
    """Whether only this user is in the group, as where every user has one of the same name."""
    import grp
    import pwd

    try:
        name, known = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return known.gr_name == name and set(known.gr_mem) <= {name}


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(relative name, lstat) of everything in the folder but the manifest and the signature;
    follows no link."""
    for folder, folders, files in os.walk(path):
        for name in (*files, *folders):
            file = Path(folder) / name
            relative = file.relative_to(path).as_posix()
            info = file.lstat()
            regular = stat.S_ISREG(info.st_mode)
            if not (regular and relative in (MANIFEST, SIGNATURE)):
                yield relative, info
