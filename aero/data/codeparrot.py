"""The corpus `codeparrot`: CodeParrot as prepared for the Hugging Face course, read through `datasets`.

The recipe of He & Hofmann's code, which the authors of AERO use: both data sets shuffled with seed 0, the first 600,000
files for training, the first 2,000 of the validation set for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aero.data.base import Split

DATA_SETS = {
    "train": ("huggingface-course/codeparrot-ds-train", "train"),
    "valid": ("huggingface-course/codeparrot-ds-valid", "validation"),
}
"""Name of the data set, and of its only split."""
MOST_DOCUMENTS = {"train": 600_000, "valid": 2_000}
SHUFFLE_SEED = 0


class CodeParrot:
    """The two data sets from the hub or from the local cache of `datasets`, memory-mapped.

    The streaming mode of `datasets` is not used: it shuffles within a buffer only and gives other files.
    """

    name = "codeparrot"

    def __init__(self, key: str = "corpus.name") -> None:
        self.key = key
        self._loaded: dict[str, Any] = {}

    def documents(self, split: Split) -> Iterator[str]:
        if split not in self._loaded:
            self._loaded[split] = self._load(split)
        yield from filter(None, self._loaded[split]["content"])

    def manifest(self) -> dict[str, Any]:
        splits = {split: {"data_set": DATA_SETS[split][0], "documents": len(d)} for split, d in self._loaded.items()}
        return {"name": self.name, "shuffle_seed": SHUFFLE_SEED, "splits": splits}

    def _load(self, split: Split) -> Any:
        import datasets

        name, only = DATA_SETS[split]
        try:
            data_set = datasets.load_dataset(name, split=only)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"corpus 'codeparrot' cannot be loaded ({name}: {error}); set {self.key}=python_stdlib or local, or go "
                "online"
            ) from None
        return data_set.shuffle(seed=SHUFFLE_SEED).select(range(min(MOST_DOCUMENTS[split], len(data_set))))
