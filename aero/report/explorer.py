"""The explorer: rows of all tables compared by bytes, latency and perplexity, and all claims, sorted and filtered.

One fragment of HTML that loads nothing. vl-convert brings Vega-Lite, `assets/explorer.js` makes the tables.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from aero.report.costs import GB, PROGRAMS, compared_runs
from aero.report.papers.private_tables import PROGRAM_NAMES
from aero.report.perplexity import change
from aero.report.results import Results

BASELINE = "SM+LN+G"
PERPLEXITY = "perplexity over SM+LN+G, %"
AXES = ("GB", "WAN minutes", "LAN minutes", "computing minutes", "rounds", PERPLEXITY)
CLAIM_COLUMNS = ("paper", "where", "claim", "published", "measured", "verdict")
VEGA_LITE = "6.4"


def rows(results: Results) -> pd.DataFrame:
    """Every run with softmax attention and a composed cost, a line a program; perplexity at the report's scale."""
    runs, lines, seen = compared_runs(results), [], set()
    families = results.parameters.get("families") or {}
    baselines = {
        _setting(run, families): name
        for name, run in reversed(runs.items())
        if run["architecture"] == BASELINE and not run.get("regularizer")
    }
    for name, run in runs.items():
        model, context, budget = setting = _setting(run, families)
        if run.get("regularizer") or (setting, run["architecture"]) in seen:
            continue
        seen.add((setting, run["architecture"]))
        found = change(results, name, baselines[setting]).estimate if setting in baselines else None
        for program in PROGRAMS:
            cost = results.cost(run["architecture"], program, context, model)
            if cost is not None:
                amounts = (cost.bytes / GB, _minutes(cost.latency_wan), _minutes(cost.latency_lan))
                amounts += (_minutes(cost.seconds), cost.rounds, None if found is None else found.mean)
                shown = (None if value is None else float(f"{value:.3g}") for value in amounts)
                names = {
                    "configuration": run["architecture"],
                    "model": f"{model}, T={context}" + (f", {budget:g}x tokens" if budget != 1 else ""),
                }
                lines.append(names | {"program": PROGRAM_NAMES[program]} | dict(zip(AXES, shown, strict=True)))
    return pd.DataFrame(lines)


def _setting(run: dict[str, Any], families: dict[str, Any]) -> tuple[str, int, float]:
    model = run.get("model", "gpt2")
    context = run.get("context") or families.get(model, {}).get("context", 128)
    return model, context, float(run.get("budget", 1))


def _minutes(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


def chart(frame: pd.DataFrame) -> dict[str, Any]:
    """Vega-Lite: rows of one model as points, quantities of both axes and the model by choice."""

    def choice(name: str, options: list[str], value: str, label: str) -> dict[str, Any]:
        return {"name": name, "value": value, "bind": {"input": "select", "options": options, "name": f"{label} "}}

    models = list(dict.fromkeys(frame["model"]))
    return {
        "width": "container",
        "height": 320,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": "transparent",
        "title": {"text": {"expr": "up + ' against ' + across"}, "color": "#808894", "fontSize": 12},
        "data": {"values": json.loads(frame.to_json(orient="records"))},
        "params": [
            choice("across", list(AXES), "GB", "across"),
            choice("up", list(AXES), PERPLEXITY, "up"),
            choice("size", models, models[0], "model"),
        ],
        "transform": [
            {"filter": "datum.model == size && isValid(datum[across]) && isValid(datum[up])"},
            {"calculate": "datum[across]", "as": "x"},
            {"calculate": "datum[up]", "as": "y"},
        ],
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.85},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": None, "scale": {"zero": False}},
            "y": {"field": "y", "type": "quantitative", "title": None, "scale": {"zero": False}},
            "color": {
                "field": "program",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [PROGRAM_NAMES[p] for p in PROGRAMS], "range": ["#0072b2", "#009e73"]},
                "legend": {"orient": "top"},
            },
            "shape": {"field": "program", "type": "nominal", "legend": None},
            "tooltip": [{"field": field} for field in frame.columns],
        },
        "config": {"axis": {"labelColor": "#808894", "titleColor": "#808894"}, "legend": {"labelColor": "#808894"}},
    }


@cache
def scripts() -> tuple[str, str]:
    """Vega-Lite and the explorer's own script; the page allows these two by their hashes."""
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=VEGA_LITE), (
        Path(__file__).parent / "assets" / "explorer.js"
    ).read_text(encoding="utf-8")


def section(results: Results, claims: pd.DataFrame) -> str:
    """HTML of the chart, the table of rows and the table of claims (frame with at least `CLAIM_COLUMNS`)."""
    frame = rows(results)
    data = {
        "chart": chart(frame),
        "row_columns": list(frame.columns),
        "rows": json.loads(frame.to_json(orient="records")),
        "claim_columns": list(CLAIM_COLUMNS),
        "claims": json.loads(claims[list(CLAIM_COLUMNS)].to_json(orient="records")),
    }
    embedded = json.dumps(data).replace("<", "\\u003c").replace("&", "\\u0026")
    return "\n".join(
        (
            '<div class="screen-only" id="explorer"><div id="explorer-chart"></div></div>',
            f'<script type="application/json" id="explorer-data">{embedded}</script>',
            *(f"<script>{script}</script>" for script in scripts()),
        )
    )
