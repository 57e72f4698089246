"""The corpus `codeparrot`: CodeParrot as prepared for the Hugging Face course, read through `datasets`.

The recipe of He & Hofmann's code, which the authors of AERO use: both data sets shuffled with seed 0, the first 600,000
files for training, the first 2,000 of the validation set for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aero.data.base import Split

DATA_SETS = {"train": "huggingface-course/codeparrot-ds-train", "valid": "huggingface-course/codeparrot-ds-valid"}
HUB_SPLITS = {"train": "train", "valid": "validation"}  # each data set has one split only
MOST_DOCUMENTS = {"train": 600_000, "valid": 2_000}
SHUFFLE_SEED = 0
TEXT_COLUMN = "content"


class CodeParrot:
    """The two data sets from the hub or from the local cache of `datasets`, memory-mapped.

    The streaming mode of `datasets` is not used: it shuffles within a buffer only and gives other files.
    """

    name = "codeparrot"

    def __init__(self, key: str = "corpus.name") -> None:
        self.key = key
        self._loaded: dict[str, Any] = {}

    def documents(self, split: Split) -> Iterator[str]:
        data_set = self._load(split)
        for row in data_set:
            if text := row[TEXT_COLUMN]:
                yield text

    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shuffle_seed": SHUFFLE_SEED,
            "splits": {
                split: {"data_set": DATA_SETS[split], "documents": len(data_set), "fingerprint": data_set._fingerprint}
                for split, data_set in self._loaded.items()
            },
        }

    def _load(self, split: Split) -> Any:
        if split in self._loaded:
            return self._loaded[split]
        import datasets

        name = DATA_SETS[split]
        try:
            data_set = datasets.load_dataset(name, split=HUB_SPLITS[split])
        except (OSError, ValueError) as error:
            raise ValueError(
                f"corpus 'codeparrot' cannot be loaded ({name}: {error}); set {self.key}=python_stdlib or local, or go "
                "online"
            ) from None
        data_set = data_set.shuffle(seed=SHUFFLE_SEED)
        self._loaded[split] = data_set.select(range(min(MOST_DOCUMENTS[split], len(data_set))))
        return self._loaded[split]
