"""Ways in which what user code reads changes between two builds, each with code that reads it.
`KINDS` is the list."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import numpy as np

Act = Callable[[Path], None]


@dataclass(frozen=True)
class Kind:
    """`code`: the body of a function of HERE, a folder, that returns JSON. `prepare` and `change`
    act on that folder."""

    name: str
    code: str
    prepare: Act
    change: Act


def write(name: str, text: str) -> Act:
    def act(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return act


def both(*acts: Act) -> Act:
    def act(folder: Path) -> None:
        for one in acts:
            one(folder)

    return act


def nothing(folder: Path) -> None:
    """The folder stays as it is."""


def remove(name: str) -> Act:
    def act(folder: Path) -> None:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    return act


def move(old: str, new: str) -> Act:
    return lambda folder: (folder / old).replace(folder / new) and None


def swap(one: str, other: str) -> Act:
    return both(move(one, "aside"), move(other, one), move("aside", other))


def touch(name: str) -> Act:
    return lambda folder: os.utime(folder / name, (1, 1))


def link(name: str, target: str) -> Act:
    def act(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return act


def make(name: str) -> Act:
    return lambda folder: (folder / name).mkdir(parents=True)


def variable(name: str, value: str | None) -> Act:
    def act(folder: Path) -> None:
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value

    return act


def weights(name: str, value: float) -> Act:
    def act(folder: Path) -> None:
        from safetensors.numpy import save_file

        save_file({"w": np.full(3, value, np.float32)}, folder / name)

    return act


def array(name: str, value: float) -> Act:
    return lambda folder: np.save(folder / name, np.full(3, value))


def sql(name: str, *statements: str) -> Act:
    def act(folder: Path) -> None:
        with sqlite3.connect(folder / name) as base:
            for statement in statements:
                base.execute(statement)
        base.close()

    return act


def package(version: str) -> Act:
    """An installed distribution "stale-pack" whose module has no version of its own."""

    def act(folder: Path) -> None:
        site = folder / "site-packages"
        for old in site.glob("stale_pack*"):
            shutil.rmtree(old)
        write("stale_pack/__init__.py", f"VALUE = {version!r}\n")(site)
        info = f"Metadata-Version: 2.1\nName: stale-pack\nVersion: {version}\n"
        write(f"stale_pack-{version}.dist-info/METADATA", info)(site)
        write(f"stale_pack-{version}.dist-info/RECORD", "stale_pack/__init__.py,,\n")(site)

    return act


def tokenizer(name: str, word: str) -> Act:
    def act(folder: Path) -> None:
        from tokenizers import Tokenizer, models

        Tokenizer(models.WordLevel({word: 0}, unk_token=word)).save(str(folder / name))

    return act


def parquet(name: str, value: int) -> Act:
    def act(folder: Path) -> None:
        import pyarrow
        from pyarrow.parquet import write_table

        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_table(pyarrow.table({"x": [value]}), folder / name)

    return act


def library(name: str, value: int) -> Act:
    """A shared library with a function that returns the value."""

    def act(folder: Path) -> None:
        source = f"int value(void) {{ return {value}; }}"
        (folder / name).unlink(missing_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", folder / name],
                       input=source, text=True, check=True)  # fmt: skip

    return act


def archive(name: str, module: str, text: str) -> Act:
    def act(folder: Path) -> None:
        with ZipFile(folder / name, "w") as file:
            file.writestr(module, text)

    return act


_TREE = both(write("set/cat/1.txt", "1"), write("set/cat/2.txt", "2"), write("set/dog/3.txt", "3"))
_NAMED = "return sorted(str(p.relative_to(HERE)) for p in (HERE / 'set').rglob('*.txt'))"
_NATIVE = """
import ctypes
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
buffer = ctypes.create_string_buffer(16)
file = libc.fopen(str(HERE / 'd.txt').encode(), b'r')
libc.fread(buffer, 1, 16, file)
libc.fclose(file)
return buffer.value.decode()
"""
_FORKED = """
import os
read, send = os.pipe()
child = os.fork()
if not child:
    os.write(send, (HERE / 'd.txt').read_bytes())
    os._exit(0)
os.waitpid(child, 0)
return os.read(read, 99).decode()
"""
_THREADED = """
import threading
found = []
thread = threading.Thread(target=lambda: found.append((HERE / 'd.txt').read_text()))
thread.start()
thread.join()
return found
"""
_OPTIONAL = (
    "try:\n    import local_settings as s\n    return s.VALUE\nexcept ImportError:\n    return 0"
)
_PART = (
    "import pack\ntry:\n    from pack import extra\n    return 1\nexcept ImportError:\n    return 0"
)
_READ = "return (HERE / 'd.txt').read_text()"
_OLD, _NEW = write("d.txt", "old"), write("d.txt", "new")
_ROWS = (
    "import sqlite3\nreturn sqlite3.connect(HERE / 'd.db').execute('select * from t').fetchall()"
)

KINDS = (
    Kind("a file is edited", _READ, _OLD, _NEW),
    Kind("a file is edited to the same size and time", _READ, both(_OLD, touch("d.txt")),
         both(_NEW, touch("d.txt"))),
    Kind("a file is replaced by another one", _READ, both(_OLD, write("e.txt", "new")),
         move("e.txt", "d.txt")),
    Kind("a file is removed, and the code has something else",
         "return (HERE / 'd.txt').read_text() if (HERE / 'd.txt').exists() else 'none'",
         _OLD, remove("d.txt")),
    Kind("two files exchange their contents",
         "return [(HERE / n).read_text() for n in ('d.txt', 'e.txt')]",
         both(_OLD, write("e.txt", "new")), swap("d.txt", "e.txt")),
    Kind("a file is moved to another class folder", _NAMED, _TREE,
         move("set/cat/2.txt", "set/dog/2.txt")),
    Kind("files of one name in two class folders are exchanged",
         "return [p.read_text() for p in sorted((HERE / 'set').rglob('*.txt'))]",
         both(write("set/cat/1.txt", "a"), write("set/dog/1.txt", "b")),
         swap("set/cat/1.txt", "set/dog/1.txt")),
    Kind("what did not exist is created", "return (HERE / 'no.txt').exists()", nothing,
         write("no.txt", "")),
    Kind("what was no folder becomes one", "import os\nreturn os.path.isdir(HERE / 'no')",
         nothing, make("no")),
    Kind("what could not be opened is created",
         "try:\n    return open(HERE / 'no.txt').read()\nexcept OSError:\n    return None",
         nothing, write("no.txt", "now")),
    Kind("what could not be opened by its descriptor is created",
         "import os\n"
         "try:\n    return os.read(os.open(HERE / 'no.txt', os.O_RDONLY), 9).decode()\n"
         "except OSError:\n    return None", nothing, write("no.txt", "now")),
    Kind("what could not be accessed is created",
         "import os\nreturn os.access(HERE / 'no', os.R_OK)", nothing, write("no", "")),
    Kind("a file is read by its descriptor and edited",
         "import os\nreturn os.read(os.open(HERE / 'd.txt', os.O_RDONLY), 9).decode()", _OLD, _NEW),
    Kind("the time of a file is asked for, and it is touched",
         "import os\nreturn os.path.getmtime(HERE / 'd.txt')", _OLD, touch("d.txt")),
    Kind("the status of a file is asked for, and it is touched",
         "return (HERE / 'd.txt').stat().st_mtime", _OLD, touch("d.txt")),
    Kind("the newest of a folder is taken, and another one becomes it",
         "return max((HERE / 'set/cat').iterdir(), key=lambda p: p.stat().st_mtime).name",
         both(_TREE, touch("set/cat/1.txt")),
         lambda folder: os.utime(folder / "set/cat/1.txt", (2**32, 2**32))),
    Kind("the size of a file is asked for, and it grows",
         "import os\nreturn os.path.getsize(HERE / 'd.txt')", _OLD, write("d.txt", "longer")),
    Kind("a file appears in a listed folder", "import os\nreturn os.listdir(HERE / 'set/cat')",
         _TREE, write("set/cat/9.txt", "9")),
    Kind("a file disappears from a listed folder",
         "import os\nreturn [e.name for e in os.scandir(HERE / 'set/cat')]", _TREE,
         remove("set/cat/2.txt")),
    Kind("a file of a walked folder is renamed",
         "import os\nreturn [sorted(files) for _, _, files in os.walk(HERE / 'set')]", _TREE,
         move("set/cat/1.txt", "set/cat/7.txt")),
    Kind("a file of a pattern appears",
         "import glob\nreturn len(glob.glob(str(HERE / 'set' / '*' / '*.txt')))", _TREE,
         write("set/dog/9.txt", "9")),
    Kind("a subfolder is renamed", _NAMED, _TREE, move("set/dog", "set/fox")),
    Kind("an empty subfolder appears", "return sorted(p.name for p in (HERE / 'set').iterdir())",
         _TREE, make("set/emu")),
    Kind("a file becomes a folder of its name",
         "return [p.is_dir() for p in sorted((HERE / 'set/dog').iterdir())]", _TREE,
         both(remove("set/dog/3.txt"), make("set/dog/3.txt"))),
    Kind("a link to a file leads elsewhere", "return (HERE / 'link').read_text()",
         both(_OLD, write("e.txt", "new"), link("link", "d.txt")), link("link", "e.txt")),
    Kind("a link to a folder leads elsewhere",
         "return ((HERE / 'link').resolve() / 'v').read_text()",
         both(write("one/v", "1"), write("two/v", "2"), link("link", "one")), link("link", "two")),
    Kind("where a link leads is asked for", "import os\nreturn os.readlink(HERE / 'link')",
         link("link", "one"), link("link", "two")),
    Kind("a broken link is mended", "return (HERE / 'link').exists()", link("link", "d.txt"), _OLD),
    Kind("a file becomes a link", "return (HERE / 'd.txt').is_symlink()",
         both(_OLD, write("e.txt", "old")), link("d.txt", "e.txt")),
    Kind("an optional module appears", _OPTIONAL, nothing, write("local_settings.py", "VALUE = 1")),
    Kind("an optional module disappears", _OPTIONAL, write("local_settings.py", "VALUE = 1"),
         remove("local_settings.py")),
    Kind("an imported module is edited", "import helper\nreturn helper.VALUE",
         write("helper.py", "VALUE = 1"), write("helper.py", "VALUE = 22")),
    Kind("a module becomes a package", "import helper\nreturn helper.VALUE",
         write("helper.py", "VALUE = 1"), write("helper/__init__.py", "VALUE = 22")),
    Kind("an optional part of a package appears",
         _PART, write("pack/__init__.py", ""), write("pack/extra.py", "")),
    Kind("a module that is looked up appears",
         "import importlib.util\nreturn importlib.util.find_spec('no_module') is not None", nothing,
         write("no_module.py", "")),
    Kind("a module named by a configuration is another",
         "import importlib, json\n"
         "return importlib.import_module(json.load(open(HERE / 'c.json'))['m']).VALUE",
         both(write("c.json", '{"m": "ma"}'), write("ma.py", "VALUE = 1"),
              write("mb.py", "VALUE = 2")), write("c.json", '{"m": "mb"}')),
    Kind("an installed package has another version", "import stale_pack\nreturn stale_pack.VALUE",
         package("1.0"), package("2.0")),
    Kind("the version of a package that was not there is asked for",
         "import importlib.metadata as m\ntry:\n    return m.version('stale-pack')\n"
         "except m.PackageNotFoundError:\n    return None",
         nothing, package("1.0")),
    Kind("a variable is set", "import os\nreturn os.environ.get('STALE_A')",
         variable("STALE_A", None), variable("STALE_A", "1")),
    Kind("a variable is unset", "import os\nreturn 'STALE_B' in os.environ",
         variable("STALE_B", "1"), variable("STALE_B", None)),
    Kind("a variable has another value", "import os\nreturn os.getenv('STALE_C', '')",
         variable("STALE_C", "1"), variable("STALE_C", "2")),
    Kind("a JSON configuration says something else",
         "import json\nreturn json.loads((HERE / 'c.json').read_text())['classes']",
         write("c.json", '{"classes": 10}'), write("c.json", '{"classes": 12}')),
    Kind("weights are others, loaded by safetensors",
         "from safetensors.numpy import load_file\n"
         "return load_file(HERE / 'w.st')['w'].tolist()", weights("w.st", 1), weights("w.st", 2)),
    Kind("weights are others, opened by safetensors",
         "from safetensors import safe_open\nwith safe_open(HERE / 'w.st', 'np') as f:\n"
         "    return f.get_tensor('w').tolist()", weights("w.st", 1), weights("w.st", 2)),
    Kind("weights outside the project are others",
         "import safetensors.numpy\n"
         "return safetensors.numpy.load_file(str(HERE.parent / 'w.st'))['w'].tolist()",
         lambda folder: weights("w.st", 1)(folder.parent),
         lambda folder: weights("w.st", 2)(folder.parent)),
    Kind("a tokenizer is another, loaded by its library",
         "from tokenizers import Tokenizer\n"
         "return Tokenizer.from_file(str(HERE / 't.json')).get_vocab()",
         tokenizer("t.json", "a"), tokenizer("t.json", "b")),
    Kind("a row of a database is another", _ROWS,
         sql("d.db", "create table t(x)", "insert into t values (1)"),
         sql("d.db", "update t set x = 2")),
    Kind("a database that did not exist is there",
         "import sqlite3, contextlib\n"
         "try:\n    base = sqlite3.connect(f'file:{HERE}/d.db?mode=ro', uri=True)\n"
         "    return base.execute('select * from t').fetchall()\n"
         "except sqlite3.Error:\n    return None", nothing,
         sql("d.db", "create table t(x)", "insert into t values (1)")),
    Kind("an array is another, mapped by numpy",
         "import numpy as np\nreturn np.load(HERE / 'a.npy', mmap_mode='r').tolist()",
         array("a.npy", 1), array("a.npy", 2)),
    Kind("a raw array is another, mapped by numpy",
         "import numpy as np\nreturn np.memmap(HERE / 'd.txt', mode='r').tolist()", _OLD, _NEW),
    Kind("a file is another, mapped by mmap",
         "import mmap\nwith open(HERE / 'd.txt', 'rb') as f:\n"
         "    return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:].decode()", _OLD, _NEW),
    Kind("a file is another, read by native code alone", _NATIVE, _OLD, _NEW),
    Kind("a file is another, read by a forked process", _FORKED, _OLD, _NEW),
    Kind("a file is another, read by a thread", _THREADED, _OLD, _NEW),
    Kind("a program says something else",
         "import subprocess\n"
         "return subprocess.run(['cat', HERE / 'd.txt'], capture_output=True, text=True).stdout",
         _OLD, _NEW),
    Kind("a shell says something else",
         "import os\nreturn os.popen(f'cat {HERE}/d.txt').read()", _OLD, _NEW),
    Kind("the mode of a file changes", "return (HERE / 'd.txt').stat().st_mode", _OLD,
         lambda folder: (folder / "d.txt").chmod(0o600)),
    Kind("a file grows, and its size is asked by its descriptor",
         "import os\nreturn os.fstat(os.open(HERE / 'd.txt', os.O_RDONLY)).st_size", _OLD,
         write("d.txt", "longer")),
    Kind("the time of a folder is asked for", "return HERE.stat().st_mtime_ns", _OLD,
         write("e", "")),
    Kind("a folder is walked by its descriptor",
         "import os\nreturn sorted(f for _, _, fs, _ in os.fwalk(HERE / 'set') for f in fs)", _TREE,
         write("set/dog/9.txt", "9")),
    Kind("a hidden file is read by native code alone", _NATIVE.replace("d.txt", ".hidden/d.txt"),
         write(".hidden/d.txt", "old"), write(".hidden/d.txt", "new")),
    Kind("a linked file is read by native code alone", _NATIVE.replace("d.txt", "link"),
         both(write("x/d.txt", "old"), link("link", "x/d.txt")), write("x/d.txt", "new")),
    Kind("a Parquet folder gets a part, read by pyarrow",
         "import pyarrow.dataset as ds\nreturn ds.dataset(HERE / 'p').to_table().num_rows",
         parquet("p/a=1/1.parquet", 1), parquet("p/a=1/2.parquet", 2)),
    Kind("a part of a Parquet folder is another, read by pyarrow",
         "import pyarrow.parquet as pq\nreturn pq.read_table(HERE / 'p')['x'].to_pylist()",
         parquet("p/1.parquet", 1), parquet("p/1.parquet", 2)),
    Kind("a database is attached by SQL",
         "import sqlite3\nbase = sqlite3.connect(':memory:')\n"
         "base.execute(f\"attach '{HERE}/d.db' as other\")\n"
         "return base.execute('select * from other.t').fetchall()",
         sql("d.db", "create table t(x)", "insert into t values (1)"),
         sql("d.db", "update t set x = 2")),
    Kind("a program of another process pool reads",
         "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing, pathlib\n"
         "with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:\n"
         "    return pool.submit(pathlib.Path.read_text, HERE / 'd.txt').result()", _OLD, _NEW),
    Kind("libc runs a shell",
         "import ctypes\nctypes.CDLL(None).system(f'cp {HERE}/d.txt {HERE}/out'.encode())\n"
         "return (HERE / 'out').read_text()", _OLD, _NEW),
    Kind("the time zone is read by C", "import time\nreturn time.tzname[0]",
         variable("TZ", "UTC"), variable("TZ", "Asia/Tokyo")),
    Kind("a library is built again under its name",
         "import ctypes\nreturn ctypes.CDLL(str(HERE / 'lib.so')).value()",
         library("lib.so", 1), library("lib.so", 2)),
    Kind("an extension appears beside a module",
         "import helper\nreturn str(helper.__file__)[-9:]", write("helper.py", "VALUE = 1"),
         both(write("helper/__init__.py", "VALUE = 2"))),
    Kind("a namespace package gets a module",
         "import space, pkgutil\nreturn [m.name for m in pkgutil.iter_modules(space.__path__)]",
         write("space/a.py", ""), write("space/b.py", "")),
    Kind("an archive of modules is another",
         "import sys\nsys.path.append(str(HERE / 'm.zip'))\nimport zipped\nreturn zipped.VALUE",
         archive("m.zip", "zipped.py", "VALUE = 1"), archive("m.zip", "zipped.py", "VALUE = 2")),
    Kind("the name of a file is no UTF-8",
         "import os\nreturn [n.hex() for n in sorted(os.listdir(os.fsencode(HERE)))]",
         _OLD, lambda folder: (folder / os.fsdecode(b"\xff")).touch()),
)  # fmt: skip
if shutil.which("cc") is None:
    KINDS = tuple(kind for kind in KINDS if not kind.name.startswith("a library is built"))
