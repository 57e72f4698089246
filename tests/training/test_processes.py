"""One training on two processes: the losses of one process, one writer, and an end when a process dies."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from small_project import finish, stage, start, whole_lines

from aero.training.log import read
from aero.training.processes import Processes

HEAVY = {"lambda_": 1e-2, "lambda_positions": None}  # so that a wrongly scaled regulariser would show


def torchrun(folder, *arguments, count=2):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", count, "--master-addr", "127.0.0.1")
    command = (*launcher, "--master-port", port, "-m", "stages.train", *arguments)
    return start(folder, *command, GLOO_SOCKET_IFNAME="lo")


@pytest.mark.parametrize(
    ("run", "regularizer", "train"),
    [
        ("ereg-smt-scfuffni-6", HEAVY | {"reduction": "position_sum"}, {"accumulation": 2}),
        ("ereg-smt-scfuffni-6", HEAVY | {"reduction": "head_mean", "lambda_": 1.0}, {}),
        ("sm-ln-g", {}, {"accumulation": 2}),
    ],
)
def test_two_processes_have_the_losses_of_one(project, run, regularizer, train):
    folder = project(regularizer=regularizer, train=train | {"log_every": 1})
    one = stage(folder, "train", run, "--out", "one")
    two = finish(torchrun(folder, run, "--out", "two"))
    assert one.returncode == 0 and two.returncode == 0, one.stderr + two.stderr
    assert two.stdout.count("perplexity") == 1, two.stdout
    alone, together = (read(folder / name / "log.csv") for name in ("one", "two"))
    assert [row["step"] for row in together] == [row["step"] for row in alone] and len(alone) >= 24
    for a, b in zip(alone, together, strict=True):
        for name in ("train_loss", "eval_loss"):
            if a[name] is not None:
                assert b[name] == pytest.approx(a[name], abs=1e-5, rel=0), (name, a["step"])
        assert b["regularization"] == pytest.approx(a["regularization"], rel=1e-4, abs=1e-7), a["step"]
        assert b["gradient_norm"] == pytest.approx(a["gradient_norm"], rel=1e-3), a["step"]
    if regularizer:
        assert min(row["regularization"] for row in alone) > 1e-3


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("dying", [0, 1])
def test_a_dead_process_ends_the_other_and_the_training_resumes(project, dying):
    folder = project(train={"steps": 120, "log_every": 1, "checkpoint_every": 5})
    launcher = torchrun(folder, "sm-r", "--out", "out")
    while launcher.poll() is None and len(whole_lines(folder / "out/log.csv")) < 12:
        time.sleep(0.005)
    assert launcher.poll() is None, launcher.communicate()
    ranks = {rank_of(pid): pid for pid in children(launcher.pid)}
    os.kill(ranks[dying], signal.SIGKILL)
    ended = finish(launcher, timeout=60)
    assert ended.returncode != 0 and not (folder / "out/metrics.json").exists()
    told = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1 and f"process {1 - dying} of 2: another process of this training ended" in told[0], (
        ended.stderr
    )
    resumed = finish(torchrun(folder, "sm-r", "--out", "out"))
    assert resumed.returncode == 0 and "starting anew" not in resumed.stdout, resumed.stderr
    assert [row["step"] for row in read(folder / "out/log.csv")] == list(range(1, 121))


def rank_of(pid):
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)[b"RANK"])


def test_shares_are_equal_and_make_up_the_batch():
    batch = torch.arange(24).view(6, 4)
    assert torch.equal(torch.cat([Processes(rank, 3).share(batch) for rank in range(3)]), batch)
    assert Processes().share(batch) is batch
    with pytest.raises(ValueError, match="6 cannot be shared equally by 4"):
        Processes(0, 4).share(batch)
