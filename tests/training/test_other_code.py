"""What older code began is not finished by newer: its results would be of neither."""

from __future__ import annotations

import json

import pytest

from aero.config import load
from aero.data.tokens import open_tokens
from aero.records import read_rows
from aero.training import run as training


class Stopping:
    """Ends a training before a step, as a cluster's time limit does; its state stays."""

    def __init__(self, before: int) -> None:
        self.left = before

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("code", "anew"), [("older", False), ("newer", True)])
def test_a_state_of_other_code_is_not_taken_over(project, tmp_path, monkeypatch, capsys, code, anew):
    folder = project(train={"steps": 12, "log_every": 1, "checkpoint_every": 2})
    parameters, state = load(folder / "params.yaml"), tmp_path / "state.safetensors"
    tokens = open_tokens(folder / "runs/tokens")

    def train(name, **more):
        return training.train_run(parameters, "sm-r", 1, tokens, tmp_path / name, state, progress=False, **more)

    monkeypatch.setattr(training, "code_hash", lambda module: "older")
    assert train("cut", stop=Stopping(7)) is None and state.is_file()
    monkeypatch.setattr(training, "code_hash", lambda module: code)
    asked = Stopping(100)
    metrics = train("out", stop=asked)
    said = capsys.readouterr().out
    assert ("starting anew" in said and "other code" in said) is anew
    assert 100 - asked.left == (12 if anew else 12 - 7)  # asked before every step
    assert [row["step"] for row in read_rows(tmp_path / "out/log.csv")] == list(range(1, 13))
    # The configuration's hash, by which results are found again, knows nothing of code.
    monkeypatch.setattr(training, "code_hash", lambda module: "yet another")
    assert train("out", unless_done=True) == json.loads(json.dumps(metrics))


def test_the_hash_of_the_code_is_that_of_what_a_training_imports(monkeypatch, tmp_path):
    from aero.training import configuration

    files = {path.as_posix() for path in configuration.import_closure(training.__name__)}
    assert {"aero/model.py", "aero/attention.py", "aero/training/loop.py", "aero/data/batches.py"} <= files
    assert not any(name.startswith(("aero/report", "aero/two_party")) for name in files)
    before = configuration.code_hash.__wrapped__(training.__name__)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((configuration.ROOT / name).read_bytes())
    (tmp_path / "aero/model.py").write_bytes((configuration.ROOT / "aero/model.py").read_bytes() + b"#")
    monkeypatch.setattr(configuration, "ROOT", tmp_path)
    assert configuration.code_hash.__wrapped__(training.__name__) != before
