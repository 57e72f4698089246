"""Several processes, started by `torchrun`, that train one run together (DistributedDataParallel).

Each takes its share of every batch; averaged over them, gradients and losses are those of the whole batch.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aero.errors import UserError

# Long enough for the first process to write a checkpoint while the others wait.
TIMEOUT = datetime.timedelta(minutes=10)
TORCHRUN = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": 0}
"""The variables that torchrun sets, and their values in a process that trains alone."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train a run; by default the only one.

    rank: 0 … count - 1. device: where it computes, "cpu" or "cuda:<number>"; collectives use it.
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"

    @property
    def first(self) -> bool:
        """Whether this is the one process that writes files and prints."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.count > 1

    def share(self, ids: Tensor) -> Tensor:
        """This process's sequences of a batch: (B, T) -> (B / count, T). ValueError if they cannot be equal shares."""
        if not self.several:
            return ids
        if len(ids) % self.count:
            raise ValueError(
                f"batch_size {len(ids)} cannot be shared equally by {self.count} processes; "
                "choose --nproc-per-node or batch_size so that one divides the other"
            )
        return ids.chunk(self.count)[self.rank]

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` with gradients averaged over processes in every backward pass outside `model.no_sync()`."""
        if not self.several:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device != "cpu" else None)

    def total(self, *values: float) -> list[float]:
        """Sums over processes."""
        if not self.several:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(summed)
        return summed.tolist()

    def mean(self, *values: float) -> list[float]:
        """Averages over processes."""
        return [value / self.count for value in self.total(*values)]

    def mean_of(self, tensor: Tensor) -> Tensor:
        """The average of a tensor over processes, without a gradient."""
        summed = tensor.detach().clone()
        if self.several:
            dist.all_reduce(summed)
            summed /= self.count
        return summed

    def lowest(self, value: int) -> int:
        """The smallest of the processes' values."""
        if not self.several:
            return value
        smallest = torch.tensor(value, device=self.device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        return int(smallest)

    def agree(self, value: int) -> bool:
        """Whether all processes hold the same value."""
        return self.lowest(value) == -self.lowest(-value)


ALONE = Processes()


def default_device() -> str:
    """The device of a process that trains alone."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def join() -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or train alone; on GPUs each process has its own.

    UserError if there are fewer GPUs than processes, or another process is lost.
    """
    count, rank, local = (int(os.environ.get(name, default)) for name, default in TORCHRUN.items())
    gpus = torch.cuda.device_count()
    if count == 1:
        yield Processes(device=default_device())
        return
    if gpus and local >= gpus:
        raise UserError(f"process {local} has no GPU: this machine has {gpus}; use --nproc-per-node {gpus}")
    if gpus:
        torch.cuda.set_device(local)
    lost = UserError(
        f"process {rank} of {count}: another process of this training ended; "
        "the same command resumes from the last saved state"
    )

    def stopped(*_: object) -> None:
        raise lost

    # torchrun ends the others this way when one process has failed.
    signal.signal(signal.SIGTERM, stopped)
    dist.init_process_group("nccl" if gpus else "gloo", timeout=TIMEOUT)
    try:
        yield Processes(rank, count, f"cuda:{local}" if gpus else "cpu")
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo/transport" not in str(error):  # gloo raises a plain one
            raise
        # Destroying the group would wait for the lost process.
        raise lost from None
    dist.destroy_process_group()
