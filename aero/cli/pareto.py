"""`aero cost --pareto`: perplexity of the trained runs against communication, as text and as a figure."""

from __future__ import annotations

import argparse
import io
import json
import math
from pathlib import Path

from aero.config import Parameters
from aero.errors import UserError
from aero.records import write_together
from aero.report import show
from aero.report.papers.private_inference import draw_pareto, points
from aero.report.results import load
from aero.report.statistics import gate

GB = 1e9


def pareto(chosen: argparse.Namespace, parameters: Parameters, root: Path, out: Path) -> str:
    """The text of the answer; writes the figure to `out`. parameters: of the scale that is asked for."""
    results = load(root, chosen.scale)
    found, without = points(
        results, parameters, chosen.model, chosen.context, chosen.program, extrapolate=chosen.extrapolate
    )
    if not found:
        reasons = "; ".join(sorted(set(without.values()))) or "no run is of this family and context"
        raise UserError(f"nothing to draw for {chosen.model}, T={chosen.context}, scale {results.scale}: {reasons}")
    title = f"{chosen.model}, T={chosen.context}, program {chosen.program}"
    figure = draw_pareto(found, title, results.scale)
    if out.suffix == ".svg":
        content: str | bytes = show.svg(figure, f"Perplexity against communication: {title}")
    else:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=160, facecolor="white", bbox_inches="tight")
        content = image.getvalue()
    write_together({out: content})
    if chosen.json:
        values = {"model": chosen.model, "context": chosen.context, "program": chosen.program, "scale": results.scale}
        listed = [vars(point) | {"bytes_error": _finite(point.bytes_error)} for point in found]
        return json.dumps(values | {"figure": str(out), "points": listed, "left_out": without}, indent=1)
    lines = [f"{title}: perplexity at scale {results.scale}, bytes at the published sizes; {out}"]
    width = max(len(point.run) for point in found)
    for point in found:
        seeds = f"{len(point.seeds)} seed{'s' if len(point.seeds) > 1 else ''}"
        mark = "front" if point.front else ""
        lines.append(
            f"{point.run:{width}}  {point.bytes / GB:8.3f} GB  {point.perplexity:8.3f}  {seeds:7}  {mark}".rstrip()
        )
    for reason in dict.fromkeys(without.values()):
        lines.append(f"left out, {reason}: {', '.join(name for name, why in without.items() if why == reason)}")
    if fault := gate(results, "sm-ln-g"):
        lines.append(f"these perplexities are no evidence: {fault}")
    return "\n".join(lines)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
