"""The nearest settings of the search, trained again with fresh seeds: how near the published seven values does the best
single setting of `variance_sensitivity`'s experiment come, for all its cores at once.

The search ranks settings by one seed each, and the first of a ranking of hundreds of readings are flattered by that
seed. What is chosen, and how, was written and committed before any of these trainings was run:

- `chosen`: the first `NEAREST` settings of the ranking of each form of the ReLU kernel, each at the number of steps and
  with the l_0 by which it stands there. Nothing else of the search is trained again.
- `FRESH`: five seeds that neither the search (whose seeds are the settings' numbers, 0 to 239) nor the sweep (0 to 4)
  has seen.
- `best`: of these the one that comes nearest by Table 1's own way of averaging, losses clipped and then averaged over
  seeds. It is nearer than a table without any difference between the cores only if it is so by all three `WAYS`.
- A conclusion of the paper holds in it, as in the sweep, if both averages and every seed agree.

Table 1's own setting stays what it is: its rule was stated before its data.
"""

from __future__ import annotations

from aero.report.results import Results
from aero.report.sensitivity_search import FORMS, NEAREST, ranked, search
from aero.sensitivity.conclusions import ORDER
from aero.sensitivity.search import RELU_CORES, Reading, reasonable
from aero.sensitivity.setting import Setting

FRESH = (1001, 1002, 1003, 1004, 1005)
"""The seeds of the trainings that are trained again."""


def chosen(results: Results) -> list[tuple[int, Reading]]:
    """Number and reading of the settings that are trained again, form after form, the nearest of each first."""
    found = search(results)
    if found is None:
        return []
    return [(number_, reading) for form in FORMS for number_, _, reading in ranked(found, form)[:NEAREST]]


def trainings(results: Results) -> list[tuple[int, Setting, str]]:
    """What `chosen` needs: number, setting at its steps, core; each once, as a setting can be near by both forms."""
    needed = [
        (number_, reasonable(reading.steps)[number_], reading.relu if core in RELU_CORES else core)
        for number_, reading in chosen(results)
        for core in ORDER
    ]
    return list(dict.fromkeys(needed))
