"""Files that native libraries open without Python: they cause no audit event.

Well-known functions of these libraries are wrapped during a recording: every argument that names a
file or folder counts as read. In addition, the files that the process has open or mapped at the end
are recorded.
"""

from __future__ import annotations

import fcntl
import importlib.abc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType

from optkit.data.reads.watch import Watch, absolute, each, unrecorded
from optkit.execute import reads as records

READERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "av": ("open",),
        "cv2": ("imread", "imreadmulti", "VideoCapture", "FileStorage"),
        "decord": ("VideoReader.__init__", "AudioReader.__init__"),
        "duckdb": ("connect",),
        "h5py": ("File.__init__",),
        "lmdb": ("open", "Environment"),
        "onnxruntime": ("InferenceSession.__init__",),
        "polars": ("read_csv", "read_ipc", "read_json", "read_ndjson", "read_parquet", "scan_csv",
                   "scan_ipc", "scan_ndjson", "scan_parquet"),
        "pyarrow": ("memory_map", "OSFile", "input_stream"),
        "pyarrow.csv": ("read_csv", "open_csv"),
        "pyarrow.dataset": ("dataset",),
        "pyarrow.feather": ("read_feather", "read_table"),
        "pyarrow.json": ("read_json",),
        "pyarrow.parquet": ("read_table", "ParquetFile", "ParquetDataset"),
        "safetensors": ("safe_open",),
        "safetensors.numpy": ("safe_open",),
        "safetensors.torch": ("safe_open",),
        "sentencepiece": ("SentencePieceProcessor.LoadFromFile",),
        "soundfile": ("SoundFile.__init__",),
        "tokenizers": ("Tokenizer.from_file",),
        "torch": ("from_file", "UntypedStorage.from_file"),
        "torch.jit": ("load",),
        "torchaudio": ("info", "load"),
        "torchvision.io": ("read_file", "read_image", "read_video"),
    }
)  # fmt: skip
"""Module → its functions that open files whose names they get."""

_SYSTEM = ("/usr/lib", "/usr/share", "/lib")
_STALE = " (deleted)"


def held() -> set[str]:
    """Paths of files that this process has open or mapped only for reading, without libraries.
    (Files that it may write are logs or databases.) Empty if the system does not list them."""
    with unrecorded(), suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        rows = [line.split(maxsplit=5) for line in lines]
        mapped = {(row[5], row[1]) for row in rows if len(row) == 6}
        others = {path for path, rights in mapped if "x" in rights or "w" in rights}
        opened = {records.link(path) for path in Path("/proc/self/fd").iterdir() if _reads(path)}
        files = opened | {path for path, _ in mapped} - others
        return {path for path in files if path.startswith(os.sep) and os.path.isfile(path)  # noqa: PTH113
                and not path.startswith(_SYSTEM) and not path.endswith(_STALE)}  # fmt: skip
    return set()


def _reads(descriptor: Path) -> bool:
    """Whether a descriptor of this process is open only for reading."""
    with suppress(OSError):
        return fcntl.fcntl(int(descriptor.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return False  # the descriptor of the listing itself


@contextmanager
def wrapped() -> Iterator[None]:
    """Let the functions of READERS report their arguments, in modules that are imported and in
    those that will be."""
    undo: list[Callable[[], None]] = []
    for name in READERS:
        if name in sys.modules:
            undo += _wrap(sys.modules[name])
    finder = _Finder(undo)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for restore in undo:
            restore()


def _wrap(module: ModuleType) -> list[Callable[[], None]]:
    undo: list[Callable[[], None]] = []
    for dotted in READERS[module.__name__]:
        owner: object = module
        *parents, name = dotted.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        function = getattr(owner, name, None)
        if function is None or hasattr(function, "__wrapped_reader__"):
            continue
        before = vars(owner).get(name, function)  # in its class, a class method is another object
        with suppress(TypeError, AttributeError):  # a class whose attributes cannot be set
            setattr(owner, name, _reporting(function))
            undo.append(partial(setattr, owner, name, before))
    return undo


def _reporting(function: Callable[..., object]) -> Callable[..., object]:
    @wraps(function, updated=())
    def reader(*args: object, **options: object) -> object:
        for value in (*args, *options.values()):
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, str | bytes | os.PathLike):
                    _given(item)
        return function(*args, **options)

    reader.__wrapped_reader__ = True  # type: ignore[attr-defined]
    return reader


def _given(value: str | bytes | os.PathLike[str]) -> None:
    """Record the file, or the files of the folder, that an argument names. A text that is no path
    is ignored."""
    path = absolute(os.fspath(value))
    with unrecorded():
        if os.path.isfile(path):  # noqa: PTH113
            paths, folder = [path], None
        elif os.path.isdir(path):  # noqa: PTH112
            paths, folder = [entry.path for entry in os.scandir(path) if entry.is_file()], path
        else:
            return
    each(partial(_read, paths=paths, folder=folder))


def _read(watch: Watch, *, paths: Sequence[str], folder: str | None) -> None:
    for path in paths:
        watch.touch(path)
    if folder is not None:
        watch.listing(folder)


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps functions of a module as soon as it is imported."""

    def __init__(self, undo: list[Callable[[], None]]) -> None:
        self._undo = undo

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in READERS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._undo)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, undo: list[Callable[[], None]]) -> None:
        self._loader, self._undo = loader, undo

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._undo += _wrap(module)
