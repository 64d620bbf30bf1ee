"""Write the pages of docs/reference that are made from the code: python site/reference.py

python site/reference.py            writes them
python site/reference.py --check    exit code 1 if one differs from its source, and names it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from look_up import command_line, exit_codes, findings, json_documents, recipe_keys, target_table

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "command_line.md": command_line.page,
    "recipe_keys.md": recipe_keys.page,
    "json.md": json_documents.page,
    "target_table.md": target_table.page,
    "findings.md": findings.page,
    "exit_codes.md": exit_codes.page,
}


def differing() -> list[str]:
    """The pages that differ from their source."""
    return [
        name
        for name, page in PAGES.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != page()
    ]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if names := differing():
            sys.exit(f"python site/reference.py writes {', '.join(names)} anew")
        return
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
