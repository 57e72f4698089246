"""Many trainings at once on this machine.

Every training is a process of its own (`stages.train`): one that fails stops no other, and one that was killed resumes
when it is started again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Training:
    """One training and its folder; `here` is the folder of params.yaml. arguments: further ones of `stages.train`."""

    run: str
    seed: int
    scale: str
    folder: Path
    here: Path
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.run} seed {self.seed}"

    def start(self, **environment: str) -> subprocess.Popen:
        """Start the training with further environment variables. The output goes to output.txt in the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        which = [self.run, "--seed", str(self.seed), "--scale", self.scale, "--out", str(self.folder)]
        command = [sys.executable, "-m", "stages.train", *which, "--unless-done", *self.arguments]
        with open(self.folder / "output.txt", "ab") as file:
            return subprocess.Popen(
                command, cwd=self.here, env=os.environ | environment, stdout=file, stderr=subprocess.STDOUT
            )

    def failure(self, process: subprocess.Popen) -> str | None:
        """Wait for the process; None, or one line why it failed."""
        output, status = self.folder / "output.txt", process.wait()
        if status < 0:
            return f"killed by signal {-status}, see {output}"
        if status:
            said = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return said[-1].removeprefix("error: ") if said else f"exit status {status}"
        return None


def run_here(
    trainings: Sequence[Training], jobs: int, gpus: Sequence[str] = ()
) -> Iterator[tuple[Training, str | None]]:
    """Run `trainings` on this machine, `jobs` at a time; yields each with None or the reason it failed.

    gpus: names for CUDA_VISIBLE_DEVICES; with fewer than `jobs`, several trainings share one.
    """
    waiting, running = list(reversed(trainings)), {}  # running: training and process by slot
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // jobs)))
    try:
        while waiting or running:
            for slot in set(range(jobs)) - running.keys():
                if waiting:
                    training = waiting.pop()
                    chosen = {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {}
                    running[slot] = training, training.start(**chosen)
            time.sleep(0.05)
            for slot, (training, process) in list(running.items()):
                if process.poll() is not None:
                    del running[slot]
                    yield training, training.failure(process)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
