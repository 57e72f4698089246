"""Tables of `results/robustness`: damaged input, injected faults, a long-running server, repeated trainings."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from aero.report import style
from aero.report.costs import MIB
from aero.report.results import Results

CAMPAIGNS = {
    "fuzz": "damaged input",
    "faults": "faults during the pipeline",
    "faults_report": "faults during every stage and the report",
    "server": "one server, many questions",
    "transcripts": "transcripts of two prompts compared",
    "advisories": "packages against known vulnerabilities",
}


def read(results: Results, name: str) -> dict[str, Any]:
    """The results of a campaign, empty without the file."""
    path = results.root / "results" / "robustness" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def campaigns(results: Results) -> pd.DataFrame:
    """Checks made and passed by every campaign, and the commit that they were made at."""
    lines = []
    for name, what in CAMPAIGNS.items():
        found = read(results, name)
        if not found:
            continue
        if name == "fuzz":
            checks, failed = found["cases"], found["failures"]
        else:
            checks = sum(case["count"] for case in found["cases"])
            failed = checks - sum(case["passed"] for case in found["cases"])
        commit = (found.get("provenance") or {}).get("commit", "")[:10]
        lines.append({"campaign": what, "checks": f"{checks:,}", "failed": f"{failed:,}", "commit": commit})
    return pd.DataFrame(lines)


def determinism(results: Results) -> pd.DataFrame:
    """The same training again under another condition: whether all values are equal, and the largest difference."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in read(results, "determinism").get("comparisons", ()):
        groups.setdefault((line["scale"], line["compared"]), []).append(line)
    return pd.DataFrame(
        {
            "scale": scale,
            "compared": compared,
            "bit for bit": f"{sum(line['identical'] for line in lines)} of {len(lines)}",
            **{
                f"largest difference, {what}": f"{max(line[what] for line in lines):.1e}".replace("0.0e+00", "0")
                for what in ("loss", "perplexity", "entropy")
            },
        }
        for (scale, compared), lines in groups.items()
    )


def server(results: Results) -> Figure:
    """Resident memory of a server and seconds a question over a long session."""
    found = read(results, "server")
    figure, panels = style.subplots(1, 2, height=1.9)
    if not found:
        style.no_data(panels[0], "not measured yet")
        return figure
    samples = pd.DataFrame(found["samples"], columns=found["columns"])
    samples = samples[samples["memory_bytes"] > 0]
    panels[0].plot(samples["question"], samples["memory_bytes"] / MIB, color=style.AS_WRITTEN)
    panels[1].plot(samples["question"], samples["seconds"], color=style.AS_WRITTEN, linewidth=0.6)
    for axes, label in zip(panels, ("resident memory, MiB", "seconds a question"), strict=True):
        axes.set(xlabel="question", ylabel=label, ylim=(0, None))
        axes.grid()
    return figure
