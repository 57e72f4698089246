"""Scores, aggregation and selection against cases worked by hand and plain loops."""

import itertools

import pytest
import torch

from aero.parallel_context.attention import PREFIX, QueryPass, Selection, aggregate, chosen, group_scores

GROUPS = torch.tensor([PREFIX, 0, 0, 0, 1, 1, 2, PREFIX])


def test_group_scores_by_hand():
    row = torch.tensor([[0.30, 0.05, 0.10, 0.02, 0.20, 0.03, 0.25, 0.05]])
    assert torch.allclose(group_scores(row, GROUPS, 3, top=2), torch.tensor([[0.15, 0.23, 0.25]]))
    assert torch.allclose(group_scores(row, GROUPS, 3, top=5), torch.tensor([[0.17, 0.23, 0.25]]))


@pytest.mark.parametrize("top", [2, 100])
@pytest.mark.parametrize("dims", [(-2,), (-3, -2), (0, -3, -2)])
def test_aggregate_by_plain_loops(dims, top):
    scores = torch.rand(2, 1, 3, 4, 5, generator=torch.Generator().manual_seed(1))  # (L, B, H, m, P)
    found = aggregate(scores, dims, top)
    over = {dim % 5 for dim in dims}
    for place in itertools.product(*(range(1 if d in over else n) for d, n in enumerate(scores.shape))):
        values = [
            scores[index].item()
            for index in itertools.product(*(range(n) for n in scores.shape))
            if all(index[d] == place[d] for d in range(5) if d not in over)
        ]
        expected = sum(sorted(values, reverse=True)[:top])
        assert found[place].item() == pytest.approx(expected, abs=1e-5)


def test_selected_by_hand():
    kept = chosen(torch.tensor([[0.2, 0.5, 0.4]]), Selection(2))
    assert kept.tolist() == [[False, True, True]]
    assert chosen(torch.tensor([0.2, 0.5]), Selection(7)).all()


def test_selection_by_mass_by_hand():
    """Of 2.0 in all, 1.2 and 0.5 make the share 0.85: fewer segments where one dominates."""
    scores = torch.tensor([[0.1, 1.2, 0.2, 0.5], [1.7, 0.1, 0.1, 0.1]])
    kept = chosen(scores, Selection(mass=0.8))
    assert kept.tolist() == [[False, True, False, True], [True, False, False, False]]


def test_probabilities_are_masked_and_renormalised():
    logits = torch.randn(1, 2, 3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    full = logits.softmax(-1)
    seen = QueryPass(GROUPS, Selection(top_k=1))
    sparse = seen.probabilities(logits)
    for h, i in itertools.product(range(2), range(3)):
        row = full[0, h, i]
        by_group = [
            sum(sorted((row[j].item() for j in range(8) if GROUPS[j] == g), reverse=True)[:5]) for g in range(3)
        ]
        best = by_group.index(max(by_group))
        kept = [j for j in range(8) if GROUPS[j] in (PREFIX, best)]
        mass = sum(row[j].item() for j in kept)
        for j in range(8):
            assert sparse[0, h, i, j].item() == pytest.approx(row[j].item() / mass if j in kept else 0.0)
        entropy = -sum(row[j].item() / mass * torch.log(row[j] / mass).item() for j in kept)
        assert seen.entropies[0][0, h, i].item() == pytest.approx(entropy)


def test_selection_over_layers_by_hand():
    """One key a segment, so a score is a probability: layer 1 is for segment 0, layers 2 and 3 for segment 1."""
    rows = [[0.50, 0.30, 0.20], [0.10, 0.60, 0.30], [0.20, 0.70, 0.10]]
    seen = QueryPass(torch.tensor([0, 1, 2]), Selection(top_k=1, aggregation="LHT"))
    for row in rows:
        seen.probabilities(torch.tensor(row).log().view(1, 1, 1, 3))
    # Sums over layers: 0.8, 1.6, 0.6. The first layer alone would keep segment 0.
    assert seen.over_layers().tolist() == [[[[False, True, False]]]]
    assert seen.scores[0].argmax() == 0
