"""The sampling errors of heads per quarter of a maximum: a hand-worked case, and what the figures draw of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aero.report import entropy_figures, entropy_page
from aero.report.entropy_drawing import quarter_errors
from aero.report.figure_index import FIGURES
from aero.report.results import Entropy, Results, Run

DRAWN = ("figure_3a", "figure_9", "figure_16", "figure_18")


def run_of(seed: int, blocks: list[list[float]], bound: float = 2.0) -> Run:
    """A model of one layer, of which so many blocks of its heads' means are stored."""
    mean = tuple(np.mean(blocks, axis=0).tolist())
    entropy = Entropy(
        mean=(mean,),
        by_position=(),
        maximum={"observed": max(mean), "causal_bound": bound},
        quarters={"observed": (0.0,) * 4, "causal_bound": (0.0,) * 4},
        overload={},
        collapse={},
        tokens=1,
        rule="",
        blocks=tuple((tuple(block),) for block in blocks),
    )
    return Run("made", "laptop", seed, "SM", 1.0, 0.0, None, {}, "made", False, entropy=entropy)


def with_differing_blocks(results: Results) -> Results:
    """The same with blocks of tokens that differ so much that heads change their quarters."""
    draw = np.random.default_rng(0)

    def differing(run: Run) -> Run:
        noise = draw.uniform(0.7, 1.3, (8, *np.shape(run.entropy.mean)))
        blocks = tuple(tuple(map(tuple, block)) for block in (noise * np.array(run.entropy.mean)).tolist())
        return replace(run, entropy=replace(run.entropy, blocks=blocks))

    return replace(results, runs={key: tuple(map(differing, runs)) for key, runs in results.runs.items()})


def test_a_hand_worked_case() -> None:
    """Two blocks: the first, the second or both are drawn with probabilities 1/4, 1/4 and 1/2. Of the two heads one has
    1 in both, the other 0.4 or 0.6, so 0.4, 0.6 or 0.5 on average: only the first is below half of 1. The fraction of
    heads below it is then 1/2 with probability 1/4, else 0: its standard deviation is 1/2 sqrt(1/4 · 3/4) = 0.217. All
    three values are below three quarters and none is below a quarter. Half of 1 is a quarter of 2.
    """
    found = quarter_errors([run_of(1, [[1.0, 0.4], [1.0, 0.6]])], ("observed", "causal_bound"))
    assert found["observed"] == pytest.approx([0, 0.217, 0], rel=0.1)
    assert found["causal_bound"] == pytest.approx([found["observed"][1], 0, 0])
    # Of a mean over two seeds that differ alike with the tokens the error is the same, of one that does not half of it.
    same, still = run_of(2, [[1.0, 0.4], [1.0, 0.6]]), run_of(3, [[1.0, 0.6], [1.0, 0.6]])
    for others, share in (([same], 1.0), ([still], 0.5)):
        both = quarter_errors([run_of(1, [[1.0, 0.4], [1.0, 0.6]]), *others], ("observed",))
        assert both["observed"] == pytest.approx(share * found["observed"])


def test_the_largest_head_is_found_again_in_every_resample() -> None:
    """The other head is half of the largest in every block, however that varies: never below half of it."""
    found = quarter_errors([run_of(1, [[1.0, 0.5], [2.0, 1.0], [4.0, 2.0]])], ("observed", "causal_bound"))
    assert found["observed"].tolist() == [0, 0, 0] and found["causal_bound"][1] > 0.1


def test_what_is_not_stored_has_no_error() -> None:
    one = run_of(1, [[1.0, 0.4], [1.0, 0.6]])
    without = replace(one, entropy=replace(one.entropy, blocks=()))
    assert quarter_errors([one, without], ("observed",)) == quarter_errors([without], ("observed",)) == {}
    assert quarter_errors([], ("observed",)) == quarter_errors([replace(one, entropy=None)], ("observed",)) == {}
    assert quarter_errors([one], ("log_T",)) == {}
    assert quarter_errors([run_of(1, [[1.0, 0.4]])], ("observed",)) == {}  # one block has no spread
    broken = quarter_errors([run_of(1, [[1.0, np.nan], [0.9, np.nan]])], ("observed",))["observed"]
    assert broken.tolist() == [0, 0, 0]  # in no quarter, whatever the tokens


@pytest.mark.parametrize("name", DRAWN)
def test_whiskers_are_two_errors_about_the_ends_of_quarters(name: str, everything: Results) -> None:
    everything = with_differing_blocks(everything)
    figure = getattr(entropy_figures, name)(everything)
    drawn = 0
    runs = next(one for one in FIGURES if one.name == name).runs
    maxima = ("observed", "causal_bound", "log_T")[: 3 if name in ("figure_3a", "figure_9") else 2]
    panels = [panel for panel in figure.axes if panel.patches]
    for panel, maximum in zip(panels, maxima, strict=True):
        whiskers = {
            (round(line.get_ydata()[0] - 0.25), *np.round(line.get_xdata(), 9))
            for line in panel.lines
            if line.get_marker() in ("", "None", None)
        }
        expected = set()
        for place, run in enumerate(runs):
            ends = np.cumsum(np.mean(list(everything.quarters(run, maximum).values()), axis=0))[:3]
            errors = quarter_errors(everything.seeds(run), maxima)[maximum]
            for end, error in zip(ends, errors, strict=True):
                if error > 0:
                    expected.add((place, *np.round(np.clip([end - 2 * error, end + 2 * error], 0, 1), 9)))
        assert whiskers == expected
        drawn += len(expected)
    assert drawn > 3


def test_a_caption_says_what_whiskers_are_and_who_has_none(everything: Results) -> None:
    def caption(results: Results) -> str:
        return entropy_page.figures(results, "aero").text.split('id="figure-9"')[1].split('id="figure-10"')[0]

    everything = with_differing_blocks(everything)
    said = caption(everything)
    assert "two standard errors of where a quarter ends, for the held-out tokens" in said and "not stored" not in said
    (trained,) = everything.seeds("sm-scffn")
    older = replace(trained, entropy=replace(trained.entropy, blocks=()))
    results = replace(everything, runs={**everything.runs, (everything.scale, "sm-scffn"): (older,)})
    assert "Blocks of held-out sequences not stored: sm-scffn." in caption(results)
    rows = {
        round(line.get_ydata()[0] - 0.25, 2) for panel in entropy_figures.figure_9(results).axes for line in panel.lines
    }
    assert 2 not in rows and len(rows & {0, 1, 3}) > 1
