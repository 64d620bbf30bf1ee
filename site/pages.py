"""Write the pages of the docs site: python site/pages.py OUT

    OUT/            README, CONTRIBUTING, docs/ and the pages of examples/ and experiments/, at
                    their places in the repository, so that the links between them hold
    OUT/...         the files that the pages link to, as they are
    OUT/reference/  the Python API, for mkdocstrings

A link to a folder of the repository becomes plain text, because a site has no listings of folders.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import optkit

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#:]+)(#[^)]*)?\)")
FOLDER_PAGE = "README.md"


def sources() -> list[Path]:
    """The pages of the repository, relative to its root."""
    found = [ROOT / FOLDER_PAGE, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"),
             *ROOT.glob("examples/**/README.md"), *ROOT.glob("examples/**/SKILL.md"),
             *ROOT.glob("experiments/**/*.md")]  # fmt: skip
    return sorted({page.relative_to(ROOT) for page in found})


def copy(page: Path, out: Path) -> None:
    """Write a page, and copy the files beside the pages to which it links."""

    def adapted(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(ROOT / page.parent / link[2]))
        if target.is_dir():
            if not (target / FOLDER_PAGE).exists():
                return link[1]
            return f"[{link[1]}]({link[2].rstrip('/')}/{FOLDER_PAGE})"
        if target.suffix != ".md":
            file = out / target.relative_to(ROOT)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, file)
        return link[0]

    (out / page).parent.mkdir(parents=True, exist_ok=True)
    (out / page).write_text(LINK.sub(adapted, (ROOT / page).read_text("utf-8")), "utf-8")


def python_api() -> str:
    """The public names of `optkit`, as mkdocstrings reads them from the source."""
    names = "The names that `import optkit` gives, and those of `optkit.qat`."
    parts = ["# Python API", f"{names} Nothing else is public."]
    for name in sorted(optkit.__all__, key=lambda name: (name[0].isupper(), name)):
        home = getattr(getattr(optkit, name), "__module__", None)
        parts += [f"## optkit.{name}", f"::: {f'{home}.{name}' if home else f'optkit.{name}'}"]
    for name in ("export", "finalize", "prepare"):
        parts += [f"## optkit.qat.{name}", f"::: optkit.qat.{name}"]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    for page in sources():
        copy(page, out)
    reference = out / "reference"
    reference.mkdir()
    (reference / "python.md").write_text(python_api(), "utf-8")


if __name__ == "__main__":
    main()
