"""Which runs of params.yaml stand for rows whose private inference AERO prints the cost of."""

from __future__ import annotations

from aero.config import RunParameters

COSTED = ("aero/table4", "aero/table5", "aero/table6", "aero/table7", "aero/figure15")


def costed_places(run: RunParameters) -> tuple[str, ...]:
    """Where AERO prints costs of `run`, as `aero/table4/SM+ScFuFFN`: its rows of `COSTED`, empty for none."""
    return tuple(place for place in (*run.rows, *run.figures) if "/".join(place.split("/")[:2]) in COSTED)
