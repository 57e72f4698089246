"""Hash of the files of a folder, in its contents.json: `python -m stages.contents FOLDER`.

A later stage names contents.json under `params`, not the folder under `deps`: `dvc repro --dry` needs dependencies
to exist, but not files of parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

from aero.errors import UserError, run_main
from aero.records import write_text


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.contents", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    target, total = folder / "contents.json", hashlib.sha256()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != target]
    if not files:
        raise UserError(f"{folder} has no files; run the stage that writes it")
    for path in files:
        with open(path, "rb") as file:
            total.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    write_text(target, json.dumps({"files": len(files), "sha256": total.hexdigest()}) + "\n")


if __name__ == "__main__":
    run_main(main)
