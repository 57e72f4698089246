"""Quantities of private inference at the papers' dimensions: bytes, latencies and what the baseline's GELU costs."""

from __future__ import annotations

import math

from aero.published import table
from aero.report.costs import FITS, GB, audit, fits, operation, published_cost, row_costs, saving
from aero.report.results import Results
from aero.report.verdicts import PAPER_DIMENSIONS, Measurement, exact

GROUP = "cost at the papers’ dimensions"


def _not_measured(row: str) -> Measurement:
    return Measurement("", PAPER_DIMENSIONS, missing=f"two-party cost of {row} not measured yet")


def bytes_over_published(results: Results, tables: list[str], row: str) -> Measurement:
    """Measured bytes of one forward pass, both directions, over the printed GB: that of the tables which is furthest
    from 1, on stock SPU and in the configuration of SPU that fits all printed bytes best."""
    ratios: dict[str, list[float]] = {"stock SPU": [], "fitted to the published bytes": []}
    text, evidence = [], []
    for of in tables:
        printed = table(of)
        cost, published = row_costs(results, printed, row).get("as_written"), printed.value(row, "communication")
        if cost is None or published is None:
            return _not_measured(f"{row} of {of}")
        sizes = {"stock SPU": cost.bytes / GB}
        if (program := published_cost(results, printed, row)) is not None:
            sizes["as a program"] = program.bytes / GB
        if (fitted := fits(results).get((printed.number, row))) is not None:
            sizes["fitted to the published bytes"] = fitted.gigabytes
            evidence.append(f"{FITS}: {fitted.configuration}")
        for name, size in sizes.items():
            ratios.setdefault(name, []).append(size / published)
        evidence.append(f"{cost.path}, {cost.program}, {cost.method}")
        text.append(f"{of}: " + ", ".join(f"{name} {size:.2f} GB" for name, size in sizes.items()))
    furthest = {
        name: exact(max(found, key=lambda ratio: abs(math.log(ratio))))
        for name, found in ratios.items()
        if len(found) == len(tables) and name != "as a program"
    }
    words = ", ".join(f"{name} {one.mean:.2f} of the published at worst" for name, one in furthest.items())
    return Measurement("; ".join((words, *text)), PAPER_DIMENSIONS, "; ".join(dict.fromkeys(evidence)), furthest)


def savings(results: Results, rows: dict[str, list[str]], quantity: str, program: str = "as_written") -> Measurement:
    """How many times fewer bytes, or seconds on the WAN (`latency_wan`), each row needs in one program than SM+LN+G, as
    [table, row], or than another, as [table, row, other row]."""
    effects, paths = {}, []
    for name, (of, row, *other) in rows.items():
        own, *base = (saving(results, table(of), one, program, quantity) for one in (row, *other))
        if own is None or None in base:
            return _not_measured(f"{row} of {of}")
        effects[name] = exact(own / base[0] if base else own)
        cost = row_costs(results, table(of), row)[program]
        paths.append(f"{cost.path}, {program}, {cost.method}")
    network = results.parameters.get("two_party", {}).get("networks", {}).get("wan", {})
    if quantity == "latency_wan":
        paths.append(f"WAN {network.get('bandwidth_mbit')} Mbit/s, {network.get('rtt_ms')} ms")
    text = ", ".join(f"{name} {one.mean:.2f}×" for name, one in effects.items())
    return Measurement(text, PAPER_DIMENSIONS, "; ".join(dict.fromkeys(paths)), effects)


def architectures_share(results: Results, of: str, row: str, quantity: str) -> Measurement:
    """Share of a saving (of logarithms) that is left when the baseline's GELU alone is computed in segments: the
    architecture's own."""
    found = audit(results, table(of), row, quantity)
    if found.share is None:
        return _not_measured(row)
    text = f"{found.as_written:.2f}× = {found.by_gelu:.2f}× by the GELU x {found.one_gelu:.2f}×: {found.share:.0%}"
    tuned = "" if found.tuned is None else f"; both optimised {found.tuned:.2f}×"
    evidence = f"{', '.join(found.rows)}; gelu_plain and gelu_segments of {found.gelu}{tuned}"
    return Measurement(text, PAPER_DIMENSIONS, evidence, {"": exact(found.share)})


def gelu_of_the_baseline(results: Results, of: str, gelu: str, relu: str) -> Measurement:
    """Bytes of one GELU, (printed GB of `gelu` - `relu`) / layers + one measured ReLU: whether they are nearer, in
    ratio, to a GELU in polynomial segments than to a plain one."""
    printed = table(of)
    sizes = printed.dimensions
    shape = f"{sizes['context']}x{4 * sizes['width']}"
    found = {kind: operation(results.operations, kind, shape) for kind in ("gelu_plain", "gelu_segments", "relu")}
    if missing := [kind for kind, measured in found.items() if measured is None]:
        return Measurement("", PAPER_DIMENSIONS, missing=f"not measured yet: {', '.join(missing)}")
    size = {kind: (one["bytes_sent_client"] + one["bytes_sent_server"]) / GB for kind, one in found.items() if one}
    both = [printed.value(row, "communication") for row in (gelu, relu)]
    implied = (both[0] - both[1]) / sizes["layers"] + size["relu"]
    plain, segments = (abs(math.log(implied / size[kind])) for kind in ("gelu_plain", "gelu_segments"))
    return Measurement(
        f"{implied:.2f} GB a GELU; plain {size['gelu_plain']:.2f}, segments {size['gelu_segments']:.2f}",
        PAPER_DIMENSIONS,
        f"results/two_party/ops.csv, {shape}; Table {printed.number}",
        {"": exact(implied)},
        checks={"": segments < plain},
    )
