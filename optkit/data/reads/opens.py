"""Opened files that the kernel reports, whichever program opens them: inotify on the folders in
use.

So reads of native libraries, programs and forked processes are recorded beneath the roots, and in
every folder in which the code has opened, listed or queried anything. The kernel does not say which
program opened a file: a file that another program opens during the run counts as read too. This may
cause an unnecessary run, but never a wrong result.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from optkit.data.reads.watch import Watch, unrecorded

_READ, _CREATE = 0x10, 0x100  # IN_CLOSE_NOWRITE: it was open only for reading
_CHANGE = 0x2 | 0x80 | 0x200  # IN_MODIFY, IN_MOVED_TO, IN_DELETE
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_MOST = 4000
"""The largest number of watched folders of a root. In further folders, files that only native code
opens are not seen."""
_COMMON = ("/", "/etc", "/tmp", "/var/tmp", str(Path.home()))
"""Folders in which every program opens files, so reports about them say nothing about the code."""
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages")


class Opens:
    """Reports to a recording the files that are opened in its folders. Without inotify, or if its
    limits are reached, it reports nothing."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._folders: dict[int, str] = {}
        self._known: set[str] = set()
        self._changed: set[str] = set()
        self._fd = -1

    def __enter__(self) -> Opens:
        if sys.platform == "linux":
            with suppress(OSError, AttributeError):
                self._libc = ctypes.CDLL(None, use_errno=True)
                self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for root in self._watch.roots:
            for folder in _beneath(root):
                self.add(folder)
        self._watch.hear(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.hear(None)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def add(self, folder: str) -> None:
        """Watch another folder."""
        if self._fd < 0 or folder in self._known or folder in _COMMON:
            return
        if self._watch.ignores(folder):
            return
        self._known.add(folder)
        mask = _READ | _CREATE | _CHANGE
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if number >= 0:
            self._folders[number] = folder

    def drain(self) -> None:
        """Process all new reports of the kernel."""
        with unrecorded(), suppress(BlockingIOError):
            while self._fd >= 0:
                self._take(os.read(self._fd, 1 << 16))

    def _take(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            number, mask, _, length = _EVENT.unpack_from(events, at)
            name = os.fsdecode(events[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
            at += _EVENT.size + length
            if mask & _OVERFLOW:
                self._watch.lack("more files were opened at once than the system could tell")
            elif number in self._folders and name:
                self._heard(f"{self._folders[number]}{os.sep}{name}", mask)

    def _heard(self, path: str, mask: int) -> None:
        """Process a report. A report is about a past state: a file that was read and changed, in
        any order, may have been read before the change."""
        if mask & _CREATE:
            self._watch.write(path)
        elif mask & _IS_FOLDER:
            return
        elif mask & _CHANGE:
            self._changed.add(path)
        else:
            self._watch.touch(path)
        if path in self._changed and self._watch.has_read(path):
            self._watch.lack(f"{path} changed while it was read")


def _beneath(root: str) -> list[str]:
    """The folder and its subfolders, without hidden ones and those that tools create."""
    folders: list[str] = []
    if root in _COMMON:
        return folders
    with unrecorded():
        for folder, inner, _ in os.walk(root):
            inner[:] = [name for name in inner if name[0] != "." and name not in _LEFT_OUT]
            if len(folders) == _MOST:
                break
            folders.append(folder)
    return folders
