"""The command `aero`.

aero runs [RUN] [--table aero/4] [--scale gpu] [--json] every training of the papers: rows, state, cost
aero cost ARCHITECTURE | --compare A B | --pareto       what a private forward pass costs, from measured operations
aero ask --checkpoint CKPT | --server HOST:PORT PROMPT  a private question: the client's prompt, the server's weights
aero serve --checkpoint CKPT --listen HOST:PORT         answer private questions from other hosts, over TLS
aero certificates FOLDER --host HOST                    a CA and certificates for both
aero entropy MODEL --text FILE                          attention entropy of a checkpoint or a Hugging Face model
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from aero.cli import ask as asking
from aero.cli import cost as cost_answer
from aero.cli import entropy as entropy_command
from aero.errors import UserError, run_main


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` says what there is")


def main(arguments: list[str]) -> int | None:
    parser = _Parser(prog="aero", description="Private language models, reproduced: parts of the artifact as commands.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    runs = commands.add_parser(
        "runs",
        help="list the runs with their table rows, state and cost",
        description="Every run of the papers, one a line: its state at the active scale, what a training costs at "
        "every scale, the rows it stands for. State: missing; outdated (a result of other settings than params.yaml "
        "has now); diverged; kept (in results/); fresh (in runs/). Seeds: trainings there of those planned.",
    )
    runs.add_argument("runs", nargs="*", metavar="RUN", help="only these runs: sm-ln-g")
    runs.add_argument("--scale", help="the scale whose state and cost are shown (default: params.yaml's; cost: all)")
    runs.add_argument("--table", help="only runs of one table or figure: aero/4, aero/table4, aero/figure18")
    runs.add_argument("--json", action="store_true", help="everything, as JSON")
    runs.set_defaults(run=_runs)
    cost = commands.add_parser("cost", help="bytes, rounds and latency of a private forward pass of any architecture")
    cost_answer.add_arguments(cost)
    cost.set_defaults(run=_cost)
    asking.add_commands(commands)
    entropy_command.add_commands(commands)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


# What a command needs is loaded when it runs: `aero --help` must not wait for it.


def _runs(chosen: argparse.Namespace) -> None:
    from aero.cli.runs import list_runs

    print(list_runs(chosen))


def _cost(chosen: argparse.Namespace) -> None:
    from pathlib import Path

    from aero.config import PATH, load
    from aero.two_party.cost.cost_model import folder_of_costs

    root = folder_of_costs(Path(), needed=(str(PATH),))
    if root != Path():
        print(f"note: neither {PATH} nor measured costs in this folder; reading those of {root}", file=sys.stderr)
    print(cost_answer.answer(chosen, load(root / PATH), root))


def run() -> None:
    """The console script."""
    run_main(main)


if __name__ == "__main__":
    run()
