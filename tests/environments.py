"""Environments of their own for libraries that do not fit into the tests', and optkit's wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from urllib.request import urlopen

import platformdirs
from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]


def environment(name: str, *requirements: str, constrained: bool = True) -> Path:
    """The interpreter of an environment with these requirements, as pip takes them. It is kept in
    the user's cache, and made again when the requirements change. `constrained`: with the versions
    of constraints.txt."""
    cache = Path(platformdirs.user_cache_dir("optkit", appauthor=False)) / "environments"
    folder, wanted = cache / name, [*requirements, sys.version]
    python, record = folder / "bin" / "python", folder / "requirements.json"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{name}.lock"):
        if not record.exists() or json.loads(record.read_text()) != wanted:
            venv.create(folder, clear=True, with_pip=True)
            limits = ["-c", ROOT / "constraints.txt"] if constrained else []
            output([python, "-m", "pip", "install", "-q", *limits, *requirements], ROOT)
            record.write_text(json.dumps(wanted))
    return python


def output(command: list[str | Path], cwd: Path, **env: str) -> str:
    """stdout. PYTHONPATH is not passed on: it may name the checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**kept, **env}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hatchling(source: Path, out: Path, kind: str) -> Path:
    """The wheel (or sdist) of a checkout, in the empty folder `out`."""
    output([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out], source)
    (package,) = out.iterdir()
    return package


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the server that this process is answers 200. It has a minute."""
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        try:
            with urlopen(url) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")
