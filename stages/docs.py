"""Write the generated numbers of README.md and docs/: `python -m stages.docs` (= `make docs`).

A block stands between `<!-- NAME -->` and `<!-- /NAME -->`, NAME one of `BLOCKS`. A second run changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import median

import pandas as pd

from aero.errors import UserError, run_main
from aero.published import load as load_paper
from aero.records import read_csv
from aero.report import claims
from aero.report.costs import GB, GENERATION, fits, row_costs
from aero.report.papers import private_inference, private_tables
from aero.report.results import Results, find_root, load
from aero.report.statistics import evidence


def headline(results: Results) -> str:
    """The README's first table, and a line on what "reproduced" means, on scale and seeds."""
    frame = private_tables.headline(results)
    names = private_tables.HEADLINE
    frame.iloc[:, 0] = [f"{names[name]} (`{name}`)" for name in frame.iloc[:, 0]]
    frame.columns = [
        "one private forward pass, GPT-2, T=128",
        "GB, paper",
        "GB, reproduced",
        "saving, paper",
        "saving, here",
        "GB, our optimised program",
    ]
    fitted, trained = fits(results), evidence(results)
    most = max((abs(fit.residual_percent) for fit in fitted.values()), default=float("nan"))
    model = trained.first("sm-ln-g").metrics["model"]
    return (
        f"{markdown(frame)}\n\n"
        f"GB, reproduced: by one configuration (SPU 0.9.2b0, tanh GELU, secret-shared weights), which gives all "
        f"{len(fitted)} published rows within {most:.2f} %. Trainings (scale `{trained.scale}`): {model['layers']} "
        f"layers, width {model['width']}, T={model['context']}, up to {len(trained.seeds('sm-ln-g'))} seeds."
    )


def claims_table(results: Results) -> str:
    """The README's claims with the command that checks each."""
    numbers, frame, table = claims.headline(results), private_tables.headline(results), load_paper("aero").tables["4"]
    fused = frame.set_index(private_tables.ROW).loc["SM+ScFuFFN"]
    base, own = (row_costs(results, table, name)["as_written"].bytes / GB for name in ("SM+LN+G", "SM+ScFuFFNi_6"))
    share = float(fused["GB, optimised"]) / float(fused["GB, paper"])
    lines = [
        ("one SPU configuration explains the printed GB", "`python -m benchmarks.forensics search`", "15 s",
         f"all {numbers['rows']} rows within {numbers['residual']:.2f} %"),
        (f"AERO saves about {numbers['saving_stock']:.0f}x in bytes (current stock SPU)",
         '`aero cost --compare SM+LN+G "SM+ScFuFFNi_6" --program as_written`', "seconds",
         f"{base:.2f} against {own:.2f} GB"),
        (f"optimised SM+ScFuFFN sends {100 * share:.0f} % of the published bytes", "`aero cost SM+ScFuFFN`",
         "1 second", f"{fused['GB, optimised']} GB (published: {fused['GB, paper']})"),
        _pretrained(results),
        ("the verdicts follow from the results", "`make report`", "1 minute", "`reports/claims.csv` unchanged"),
        ("private logits agree with PyTorch's, within fixed-point error", "`make test`", "about 8 minutes",
         "all tests pass"),
    ]  # fmt: skip
    return markdown(pd.DataFrame(lines, columns=["claim", "command", "time", "expected result"]))


def _pretrained(results: Results) -> tuple[str, str, str, str]:
    """SmolLM2-135M's private next tokens: how many are PyTorch's, and what they take there and in `aero ask`."""
    prompts = read_csv(results.root / "results/two_party/pretrained.csv")
    passes = [line for line in read_csv(results.root / GENERATION) if line["run"] == "smollm2-135m"]
    equal = sum(line["top_token_equal"] == "1" for line in prompts)
    usual = median({float(line["seconds"]) for line in prompts}) / 60
    whole, later = ([line for line in passes if line["rows"] == rows][-1] for rows in ("16", "1"))
    seconds, gigabytes = ([float(line[name]) for line in (whole, later)] for name in ("wall_seconds", "bytes"))
    return (
        "private next tokens of SmolLM2-135M equal PyTorch's",
        "`benchmarks.pretrained` ([command](docs/private_inference.md#hugging-face-models))",
        f"ten passes of about {usual:.0f} minutes, each with five prompts; `aero ask`: {seconds[0]:.0f} s for "
        f"a {whole['rows']}-token prompt, then {seconds[1]:.0f} s a new token",
        f"every token equal (committed: {equal} of {len(prompts)} prompts); `aero ask`: {gigabytes[0] / GB:.2f} GB, "
        f"then {gigabytes[1] / GB:.2f} GB a token",
    )


def markdown(frame: pd.DataFrame) -> str:
    """The frame as a Markdown table."""
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(str).values.tolist()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "headline": headline,
    "claims": claims_table,
    "cached-passes": lambda results: markdown(private_tables.cached_passes(results)),
    "verified-passes": lambda results: markdown(private_tables.verified_passes(results)),
    "row-maxima": lambda results: markdown(private_tables.row_maxima(results)),
    "communication-fit": lambda results: markdown(private_tables.communication_fit(results)),
    "outside-tuned": lambda results: markdown(private_tables.outside_tuned(results, alone=False)),
    "protocols": lambda results: markdown(private_inference.protocols(results, "4")),
    "lattice-judge": lambda results: markdown(
        pd.DataFrame(read_csv(results.root / "results/two_party/lattice_judge.csv")).drop(columns="commit")
    ),
}


def generated(text: str, results: Results) -> str:
    """`text` with every block of `BLOCKS` in it written anew."""
    for name, block in BLOCKS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = pattern.sub(lambda match, block=block: f"{match[1]}{block(results)}\n{match[2]}", text)
    return text


def main(arguments: list[str]) -> None:
    if arguments:
        raise UserError("python -m stages.docs takes no arguments")
    root, results = find_root(), load()
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        before = path.read_text(encoding="utf-8")
        after = generated(before, results)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(root)}: rewritten")


if __name__ == "__main__":
    run_main(main)
