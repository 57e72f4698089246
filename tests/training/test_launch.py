"""Many trainings at once on this machine."""

import fcntl
import json
import signal
import subprocess
import time

import pytest
from small_project import finish, one_line_error, stage, start, timeless, whole_lines

from aero.records import read_trainings
from aero.training.launch import Training, run_here


def contents(folder):
    """The JSON files of a folder, without the moment at which entropy was measured."""
    found = {path: json.loads(path.read_text()) for path in folder.rglob("*.json")}
    for values in found.values():
        values.get("measured", {}).pop("at", None)
    return found


@pytest.mark.slow
def test_one_failing_stops_no_other_and_what_is_done_is_not_done_again(project):
    folder = project()
    command = ("train_many", "sm-r", "impossible", "--seeds", "1337", "4", "--jobs", "2", "--scale", "smoke", "--keep")
    finished = stage(folder, *command)
    one_line_error(finished, "2 of 4 trainings failed", "impossible seed 1337", "impossible seed 4")
    assert finished.stdout.count("failed: the corpus has") == 2 and finished.stdout.count("perplexity") == 2
    assert list(read_trainings(folder / "results/smoke")) == [("sm-r", 4), ("sm-r", 1337)]
    trained = folder / "runs/scales/smoke/sm-r"
    assert stage(folder, "train", "sm-r", "--out", "alone").returncode == 0
    assert timeless(trained / "seed_1337") == timeless(folder / "alone")
    before = contents(trained)
    (trained / "seed_4/entropy.json").unlink()
    assert stage(folder, "train_many", "sm-r", "--seeds", "1337", "4", "--scale", "smoke").returncode == 0
    assert contents(trained) == before


@pytest.mark.slow
def test_stopped_it_stops_its_trainings_and_goes_on_later(project):
    folder = project(train={"steps": 400, "checkpoint_every": 400, "log_every": 1})
    process = start(folder, "-m", "stages.train_many", "sm-r", "--jobs", "1", "--scale", "smoke")
    trained = folder / "runs/scales/smoke/sm-r/seed_1337"
    while process.poll() is None and len(whole_lines(trained / "log.unfinished.csv")) < 30:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert finish(process).returncode == 130
    with open(trained / "resume.lock") as file:  # free: nothing trains on
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not (trained / "metrics.json").exists() and (trained / "resume.safetensors").exists()
    finished = stage(folder, "train_many", "sm-r", "--jobs", "1", "--scale", "smoke")
    assert finished.returncode == 0, finished.stderr
    assert "starting anew" not in (trained / "output.txt").read_text()
    assert [int(line[0]) for line in whole_lines(trained / "log.csv")[1:]] == list(range(1, 401))


def test_several_trainings_share_a_gpu(tmp_path):
    """Each is told which GPU it sees; no more run at once than there are jobs."""
    seen = []

    class Counted(Training):
        def start(self, **environment):
            seen.append(environment["CUDA_VISIBLE_DEVICES"])
            return subprocess.Popen(["sleep", "0.05"])

    trainings = [Counted("sm", seed, "smoke", tmp_path, tmp_path) for seed in range(6)]
    assert {t.seed: failure for t, failure in run_here(trainings, 3, ["2", "5"])} == dict.fromkeys(range(6))
    assert set(seen) == {"2", "5"} and len(seen) == 6


def test_bad_requests(project):
    folder = project()
    one_line_error(stage(folder, "train_many", "sm-rr"), "sm-rr", "sm-r")
    one_line_error(stage(folder, "train_many", "sm-r", "--jobs", "0"), "--jobs 0")
    one_line_error(stage(folder, "train_many", "sm-r", "--tokens", "none"), "none")
    assert not (folder / "runs/scales").exists()
