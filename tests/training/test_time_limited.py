"""Trainings one after the other in one process: results, time limit, interruption, resumption, merging."""

import gc
import json
import signal
import time
from functools import partial

import pytest
from small_project import finish, start, whole_lines, without_seconds

from aero.errors import UserError
from aero.records import read_training, read_trainings
from aero.training import time_limited
from aero.training.time_limited import Limit
from stages import merge_results, train, train_limited

LONG = {"steps": 4000, "log_every": 1, "evaluate_every": 1000, "checkpoint_every": 4000}


def without_time(training):
    """Metrics and curves without what differs between two runs of the same training."""
    metrics = {key: training.metrics[key] for key in training.metrics.keys() - {"provenance", "tokens_per_second"}}
    return metrics, {key: values for key, values in training.curves.items() if key != "seconds"}


def trainings(folder):
    return read_trainings(folder)


def test_results_are_those_of_the_single_stages_and_come_in_one_file(inside, capsys):
    folder = inside()
    train_limited.main(["sm-r", "ereg-smt-scfuffni-6", "--seeds", "4", "--out", "home"])
    assert sorted(path.name for path in (folder / "home").iterdir()) == [
        "curves.jsonl",
        "entropy.jsonl",
        "metrics.jsonl",
        "report.json",
    ]
    run, seed = "ereg-smt-scfuffni-6", "4"
    train.main([run, "--seed", seed, "--out", "alone"])
    merge_results.main(["home", "--allow-changes"])
    kept, alone = read_trainings(folder / "results/smoke")[run, 4], read_training(folder / "alone")
    assert without_time(kept) == without_time(alone) and kept.entropy["provenance"] == kept.metrics["provenance"]
    ours, theirs = kept.entropy, alone.entropy
    for values in (ours, theirs):
        del values["provenance"], values["measured"]
    assert ours == theirs and len(ours["learned"]["thresholds"]) == 12
    before = (folder / "home/metrics.jsonl").read_bytes()
    capsys.readouterr()
    train_limited.main(["sm-r", run, "--seeds", seed, "--out", "home"])  # in home/
    train_limited.main(["sm-r", run, "--seeds", seed, "--out", "empty"])  # in results/
    assert capsys.readouterr().out.count("2 of 2 trainings are done") == 2
    assert (folder / "home/metrics.jsonl").read_bytes() == before
    report = json.loads((folder / "home/report.json").read_text())
    assert report["left"] == [] and [line["how"] for line in report["trainings"]] == ["finished"] * 2
    with pytest.raises(UserError, match="home has trainings of scale smoke"):
        train_limited.main(["sm-r", "--scale", "laptop", "--out", "home"])


def test_what_was_trained_on_this_machine_goes_out_again_until_it_is_merged(inside):
    """A folder that is emptied before every command: what an earlier one left elsewhere is not trained again."""
    folder = inside()
    train_limited.main(["sm-r", "--out", "first"])
    train_limited.main(["sm-r", "--out", "second"])
    assert trainings(folder / "first") == trainings(folder / "second") != {}


def test_one_failing_stops_no_other(inside):
    folder = inside()
    with pytest.raises(UserError, match=r"1 of 2 trainings failed \(impossible seed 1337\)"):
        train_limited.main(["impossible", "sm-r", "--out", "home"])
    assert set(trainings(folder / "home")) == {("sm-r", 1337)}
    report = json.loads((folder / "home/report.json").read_text())
    assert report["left"] == [] and report["trainings"][0]["outcome"].startswith("failed: the corpus has")


def test_the_limit_by_hand(monkeypatch):
    now = [144.9]
    monkeypatch.setattr(time_limited.time, "monotonic", lambda: now[0])
    limit = Limit(50.0, began=100.0)  # a tenth of it, 5 s, is kept free for the end
    assert not limit.stop() and limit.elapsed() == 44.9
    now[0] = 145.1
    assert limit.stop()
    assert not Limit().stop() and Limit(interrupted=lambda: True).stop()


def test_the_limit_is_kept_and_the_next_call_ends_as_if_there_had_been_none(inside, monkeypatch):
    folder = inside(train=LONG)
    # Processor time, as others may keep the machine busy. Garbage is collected at the end: of this test, not of others.
    gc.freeze()
    monkeypatch.setattr(time_limited.time, "monotonic", time.process_time)
    monkeypatch.setattr(train_limited, "Limit", partial(Limit, began=time.process_time()))
    train_limited.main(["sm-r", "sm-g", "--out", "home", "--minutes", "0.1"])
    report = json.loads((folder / "home/report.json").read_text())
    gc.unfreeze()
    assert 4 < report["seconds"] < 6 + 1.5  # 0.6 s are kept free for the end
    assert [(line["training"], line["how"]) for line in report["trainings"]] == [("sm-r seed 1337", "unfinished")]
    assert report["left"] == ["sm-r seed 1337", "sm-g seed 1337"] and not (folder / "home/metrics.jsonl").exists()
    state = folder / "runs/scales/smoke/sm-r/seed_1337/resume.safetensors"
    done = len(whole_lines(state.with_name("log.unfinished.csv"))) - 1
    assert state.is_file() and 10 < done < 4000


def test_stopped_by_sigterm_the_last_step_is_saved_and_it_goes_on(inside, capsys):
    folder = inside(train=LONG | {"steps": 60, "checkpoint_every": 60})
    process = start(folder, "-m", "stages.train_limited", "sm-g", "sm-r", "--out", "home")
    trained = folder / "runs/scales/smoke/sm-r/seed_1337"
    while process.poll() is None and len(whole_lines(trained / "log.unfinished.csv")) < 15:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.returncode == 130, stopped.stderr
    assert "sm-r seed 1337: not finished, its state is saved" in stopped.stdout
    assert set(trainings(folder / "home")) == {("sm-g", 1337)}
    done = whole_lines(trained / "log.unfinished.csv")
    train_limited.main(["sm-g", "sm-r", "--out", "home"])
    said = capsys.readouterr().out
    assert "1 of 2 trainings are done" in said and "all are done" in said and "starting anew" not in said
    whole = whole_lines(trained / "log.csv")
    assert 15 <= len(done) < 60 and whole[: len(done)] == done
    assert [int(line[0]) for line in whole[1:]] == list(range(1, 61))
    train.main(["sm-r", "--out", "alone"])
    assert without_seconds(trained / "log.csv") == without_seconds(folder / "alone/log.csv")


def test_bad_requests_train_nothing(inside):
    folder = inside()
    for arguments, reason in (
        (["sm-rr", "--out", "home"], "sm-rr"),
        (["sm-r", "--out", "home", "--scale", "laptop"], "runs/scales/laptop/tokens"),
    ):
        with pytest.raises(ValueError, match=reason):
            train_limited.main(arguments)
    assert not (folder / "home").exists() and not (folder / "runs/scales").exists()
