"""One training on two processes: the losses of one process, one writer, and an end when a process dies."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_project import children, environment, finish, start, whole_lines
from stage_processes import StageProcess

from aero.records import read_rows
from aero.training.distributed import Processes
from aero.training.loop import Regularizer, Trainer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_torchrun(folder, module, *arguments):
    """Two processes with the variables that torchrun sets; forked, since torchrun's own import PyTorch anew."""
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables["GLOO_SOCKET_IFNAME"] = "lo"
    pair = [
        StageProcess(folder, module, list(arguments), environment(RANK=rank, LOCAL_RANK=rank, **variables))
        for rank in ("0", "1")
    ]
    first, second = map(finish, pair)
    return subprocess.CompletedProcess(
        first.args, first.returncode or second.returncode, first.stdout + second.stdout, first.stderr + second.stderr
    )


def torchrun(folder, *script, count=2):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", count, "--master-addr", "127.0.0.1")
    return start(folder, *launcher, "--master-port", free_port(), *script, GLOO_SOCKET_IFNAME="lo")


IN_DOUBLE = "train_in_double"


@pytest.mark.parametrize(
    ("script", "run", "regularizer", "train"),
    [
        (IN_DOUBLE, "ereg-smt-scfuffni-6", {"reduction": "position_sum"}, {"accumulation": 2}),
        pytest.param(
            IN_DOUBLE,
            "ereg-smt-scfuffni-6",
            {"reduction": "head_mean", "lambda_": 0.1, "gamma": 0.0},
            {},
            marks=pytest.mark.slow,
        ),
        pytest.param(("-m", "stages.train"), "sm-ln-g", {}, {"accumulation": 2}, marks=pytest.mark.slow),
        pytest.param(("-m", "stages.train"), "sm-wnorm-qkvo-ffn", {}, {}, marks=pytest.mark.nightly),
    ],
)
def test_two_processes_have_the_losses_of_one(project, script, run, regularizer, train):
    """The regularised ones in float64: their softmax is sharp (temperature 0.01) and their penalty jumps at the margin,
    so in float32 two orders of summation part after some 20 steps, on one process too."""
    folder = project(regularizer=regularizer, train=train | {"log_every": 1, "steps": 24})
    if script == IN_DOUBLE:
        one = finish(StageProcess(folder, script, [run, "--out", "one"], environment()))
        two = as_torchrun(folder, script, run, "--out", "two")
    else:
        one = finish(start(folder, *script, run, "--out", "one"))
        two = finish(torchrun(folder, *script, run, "--out", "two"))
    assert one.returncode == 0 and two.returncode == 0, one.stderr + two.stderr
    assert two.stdout.count("perplexity") == 1, two.stdout
    alone, together = (read_rows(folder / name / "log.csv") for name in ("one", "two"))
    assert [row["step"] for row in together] == [row["step"] for row in alone] and len(alone) >= 24
    for a, b in zip(alone, together, strict=True):
        for name in ("train_loss", "eval_loss", "regularization"):
            if a[name] is not None:
                assert b[name] == pytest.approx(a[name], abs=1e-5, rel=0), (name, a["step"])
    assert together[0]["gradient_norm"] == pytest.approx(alone[0]["gradient_norm"], rel=1e-5)
    if regularizer:
        assert alone[0]["regularization"] > 1e-3


@pytest.mark.slow
def test_a_dead_process_ends_the_other_and_the_training_resumes(project):
    folder = project(train={"steps": 120, "log_every": 1, "checkpoint_every": 5})
    launcher = torchrun(folder, "-m", "stages.train", "sm-r", "--out", "out")
    while launcher.poll() is None and len(whole_lines(folder / "out/log.unfinished.csv")) < 12:
        time.sleep(0.005)
    assert launcher.poll() is None, launcher.communicate()
    ranks = {rank_of(pid): pid for pid in children(launcher.pid)}
    os.kill(ranks[0], signal.SIGKILL)
    ended = finish(launcher, timeout=60)
    assert ended.returncode != 0 and not (folder / "out/metrics.json").exists()
    lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "process 1 of 2: another process of this training ended" in lines[0], ended.stderr
    resumed = finish(torchrun(folder, "-m", "stages.train", "sm-r", "--out", "out"))
    assert resumed.returncode == 0 and "starting anew" not in resumed.stdout, resumed.stderr
    assert [row["step"] for row in read_rows(folder / "out/log.csv")] == list(range(1, 121))


def rank_of(pid):
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)[b"RANK"])


def test_shares_are_equal_and_make_up_the_batch():
    batch = torch.arange(24).view(6, 4)
    assert torch.equal(torch.cat([Processes(rank, 3).share(batch) for rank in range(3)]), batch)
    assert Processes().share(batch) is batch
    with pytest.raises(ValueError, match="6 cannot be shared equally by 4"):
        Processes(0, 4).share(batch)


@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
def test_regularisers_of_shares_average_to_that_of_the_batch(reduction):
    """Value and gradients, for shares with very different entropies, as gradients are averaged over processes."""
    regularizer = Regularizer(reduction, 0.1, 1.0)
    generator = torch.Generator().manual_seed(1)
    entropies = torch.rand(2, 4, 3, 8, generator=generator, dtype=torch.float64)  # (L, B, H, T)
    entropies[:, 2:] += 1.5
    thresholds = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    whole_mean = entropies.mean((1, 3))

    class Half(Processes):
        def mean_of(self, tensor):
            return whole_mean

    def gradients(part, processes):
        model = SimpleNamespace(reg_threshold_weights=thresholds.clone().requires_grad_())
        part = part.clone().requires_grad_()
        trainer = SimpleNamespace(model=model, regularizer=regularizer, processes=processes)
        value = Trainer._penalty(trainer, part)
        value.backward()
        return value.detach(), part.grad, model.reg_threshold_weights.grad

    whole = gradients(entropies, Processes())
    halves = [gradients(entropies[:, 2 * rank : 2 * rank + 2], Half(rank, 2)) for rank in range(2)]
    assert whole[0] > 0.1 and whole[1].abs().max() > 0
    torch.testing.assert_close(sum(half[0] for half in halves) / 2, whole[0])
    torch.testing.assert_close(torch.cat([half[1] for half in halves], dim=1) / 2, whole[1])
    torch.testing.assert_close(sum(half[2] for half in halves) / 2, whole[2])
