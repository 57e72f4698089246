"""The command `aero`; `aero COMMAND --help` describes each subcommand.

A subcommand imports what it needs when it runs, so that `aero --help` is fast.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from aero.cli import ask, cost, entropy
from aero.errors import UserError, run_main


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def main(arguments: list[str]) -> int | None:
    parser = _Parser(prog="aero", description="Private inference and attention entropy of language models.")
    parser.add_argument("--version", action="version", version=f"aero {version('aero-reproduced')}")
    parser.set_defaults(run=lambda _: parser.print_help())
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    runs = commands.add_parser(
        "runs",
        help="list the trainings of the papers: table rows, status, cost",
        description="Print one line per run: its state at the active scale, finished and planned seeds, and "
        "the tables that use it. States: missing; outdated (params.yaml has changed since); diverged; kept (in "
        "results/); fresh (in runs/).",
    )
    add = runs.add_argument
    add("runs", nargs="*", metavar="RUN", help="only these runs, for example sm-ln-g or SM+LN+G")
    add("--scale", help="status and cost at this scale (default: params.yaml's)")
    add("--table", help="only runs of one table or figure: aero/4, aero/table4, aero/figure18")
    add("--all", action="store_true", help="more columns, nothing shortened; without --scale, the cost at every scale")
    add("--json", action="store_true", help="print everything as JSON")
    runs.set_defaults(run=_runs)
    costs = commands.add_parser(
        "cost",
        help="bytes, rounds and latency of a private forward pass of an architecture",
        description="Print the cost of a private forward pass, composed from measured operations. Give one of "
        "ARCHITECTURE, --compare A B, --pareto and --model FOLDER.",
    )
    cost.add_arguments(costs)
    costs.set_defaults(run=_cost)
    ask.add_commands(commands)
    entropy.add_commands(commands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


def _runs(chosen: argparse.Namespace) -> None:
    from aero.cli.runs import list_runs

    print(list_runs(chosen))


def _cost(chosen: argparse.Namespace) -> None:
    from aero.config import PATH, load
    from aero.two_party.cost.cost_model import folder_of_costs

    root = folder_of_costs(Path(), needed=(str(PATH),))
    if root != Path():
        print(f"note: neither {PATH} nor committed costs in this folder; using those of {root}", file=sys.stderr)
    print(cost.answer(chosen, load(root / PATH), root))


def run() -> None:
    """The console script."""
    run_main(main)
