"""Which resource a private pass spends its time on: arithmetic on ciphertexts, oblivious transfers, or the link.

    python -m benchmarks.resources                 # about six minutes on a quiet machine of two cores

Two real parties run every operation of Table 4's rows once, with SPU's profile of its kernels (the MPC level), and the
kernels are sorted by what Cheetah does in them. results/two_party/resources.csv gets a line an operation, a few at a
time; the same command goes on where it was stopped. `benchmarks.two_party` composes rows of them.

A kernel's seconds are wall clock on loopback, the wait for the other party in them, so both parties are kept: one that
is done early waits in its next kernel. Bytes are the same for both, in both directions. Seconds of a busy machine are
long; what is used of them is their shares, times the seconds of results/two_party/ops.csv.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aero import records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import run_main
from aero.published import load as published
from aero.records import csv_text, write_text
from aero.two_party.cost.cost_model import Operations
from aero.two_party.cost.counts import Sizes, counts
from aero.two_party.cost.ledger import as_json
from aero.two_party.cost.measure import place, refilled, warm_up
from aero.two_party.cost.network import Network, wire_bytes
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import Profile, check_pair
from aero.two_party.runtime.settings import Settings
from benchmarks import timing

PATH = Path("results/two_party/resources.csv")
FIRST = ("SM+LN+G", "SM+ScFuFFN")
PROGRAMS = ("as_written", "tuned")
AT_ONCE = 6
"""Operations of one session: what a kill can lose."""
HE, OT, LOCAL, OTHER = "he", "ot", "local", "other"
WORK = (HE, OT, LOCAL, OTHER)

UNPROFILED = 0.05
"""Share of a row's seconds whose operations may be without a profile."""

KERNELS = (
    # mul_*, square_*: MulOLE, on packed ciphertexts; below 16,384 elements mul_aa opens against Beaver triples that
    # MulOLE made. mmul_*: DotOLE. A dispatch under another name has the same kernel: mmul_sv is mmul_av's, mmul_vv is
    # mmul_vvs's, square_s is square_a's.
    dict.fromkeys(("mul_aa", "mul_av", "square_a", "square_s", "mmul_aa", "mmul_av", "mmul_sv", "mmul_vv"), HE)
    # CompareProtocol, EqualProtocol, TruncateProtocol, Multiplexer, B2A; and_bb on triples of bits that oblivious
    # transfers made, and a2b, which is an adder of and_bb.
    | dict.fromkeys(("msb_a2b", "equal_aa", "equal_ap", "trunc_a", "mul_a1b", "mul_a1bv", "a2b", "b2a", "and_bb"), OT)
    # On a party's own share or on public values, and on how a tensor lies in memory: nothing is sent.
    | dict.fromkeys(
        ("add_aa", "add_ap", "add_pp", "mul_ap", "mul_vp", "mul_pp", "mmul_ap", "negate_a", "negate_p"), LOCAL
    )
    | dict.fromkeys(("and_bp", "xor_bb", "xor_bp", "lshift_a", "lshift_b", "lshift_p", "rshift_b", "arshift_b"), LOCAL)
    | dict.fromkeys(("bitrev_b", "make_p", "p2a", "p2b", "v2a", "mul_vvv", "mmul_vvv"), LOCAL)
    | dict.fromkeys(("broadcast", "concatenate", "extract_slice", "pad", "reshape", "transpose", "reverse"), LOCAL)
)
"""What SPU's kernels are, by their names in the profile (SPU 0.9.5, mpc/cheetah and the dispatch in mpc/api.cc)."""
ENCRYPTED_STEPS = frozenset({"embedding_lookup", "lattice_linear"})
"""Kinds with a step on shares of this project's that computes on ciphertexts and sends them: not SPU's, so no kernel
tells of it. What a run takes beyond its kernels is counted as that step's."""


@dataclass(frozen=True)
class Used:
    """What one run of an operation spent on what. he, ot, local: SPU's kernels by `KERNELS`; other: what is no kernel.

    seconds are by party, bytes in both directions. used_by: how often a pass of which row and program has it. kernels:
    JSON, by name: times executed, seconds of the client and of the server, bytes.
    """

    op: str
    shape: str
    variant: str
    used_by: str
    he_seconds_client: float
    he_seconds_server: float
    ot_seconds_client: float
    ot_seconds_server: float
    local_seconds_client: float
    local_seconds_server: float
    other_seconds_client: float
    other_seconds_server: float
    he_bytes: int
    ot_bytes: int
    kernels: str
    provenance: str

    def seconds(self, party: str) -> dict[str, float]:
        return {work: getattr(self, f"{work}_seconds_{party}") for work in WORK}

    def shares(self, party: str) -> dict[str, float]:
        """Of this party's seconds of the run, by `WORK`; together 1."""
        spent = self.seconds(party)
        return {work: seconds / sum(spent.values()) for work, seconds in spent.items()}


def sort_of(name: str) -> str:
    """What kernel `name` is. ValueError for one that is not known: a guess would be wrong unseen."""
    try:
        return KERNELS[name]
    except KeyError:
        raise ValueError(
            f"SPU kernel {name!r} is not sorted; see its source and add it to {__name__}.KERNELS"
        ) from None


def sorted_out(kind: str, profile: Profile) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds and bytes of a run by `WORK`. kind: of the operation.

    Kernels do not run inside others at this level of the profile (`profile.parse` holds their bytes against the
    link's), so seconds are a partition. ValueError for a kernel that is unknown, or sent what its sort does not send,
    and when kernels take longer than the run.
    """
    seconds, sent = dict.fromkeys(WORK, 0.0), dict.fromkeys(WORK, 0)
    for kernel in profile.operations:
        if kernel.level != "mpc":
            continue
        sort, bytes_ = sort_of(kernel.name), kernel.bytes_sent + kernel.bytes_received
        if (sort == LOCAL) != (bytes_ == 0):
            raise ValueError(f"SPU kernel {kernel.name!r} sent {bytes_} bytes and is sorted as {sort!r}")
        seconds[sort] += kernel.seconds
        sent[sort] += bytes_
    beyond, bytes_beyond = profile.seconds - sum(seconds.values()), profile.bytes - sum(sent.values())
    if beyond < -1e-6 or bytes_beyond < 0:
        raise ValueError(f"kernels took {-beyond:g} s and {-bytes_beyond} bytes more than the run they are of")
    sort = HE if kind in ENCRYPTED_STEPS else OTHER
    if sort == OTHER and bytes_beyond:
        raise ValueError(
            f"{kind} sent {bytes_beyond} bytes outside SPU's kernels; say in ENCRYPTED_STEPS what they are"
        )
    seconds[sort] += max(0.0, beyond)
    sent[sort] += bytes_beyond
    return seconds, sent


def kernels_of(client: Profile, server: Profile) -> dict[str, list[float]]:
    """By name, of all parts of a run: times executed, seconds of both parties, bytes in both directions."""
    found: dict[str, list[float]] = {}
    for place_, profile in enumerate((client, server)):
        for kernel in profile.operations:
            if kernel.level == "mpc":
                line = found.setdefault(kernel.name, [0, 0.0, 0.0, 0])
                line[1 + place_] += kernel.seconds
                if not place_:
                    line[0] += kernel.executed
                    line[3] += kernel.bytes_sent + kernel.bytes_received
    return {name: [line[0], round(line[1], 6), round(line[2], 6), line[3]] for name, line in sorted(found.items())}


def used(operation: Operation, client: Profile, server: Profile, variant: str, used_by: str) -> Used:
    """The line of one run. ValueError unless both parties tell of the same bytes."""
    check_pair(client, server)
    by_client, sent = sorted_out(operation.kind, client)
    by_server, also_sent = sorted_out(operation.kind, server)
    if sent != also_sent:
        raise ValueError(f"{operation.name}: kernels of the client sent {sent} bytes, of the server {also_sent}")
    seconds = {
        f"{work}_seconds_{party}": round(spent[work], 6)
        for work in WORK
        for party, spent in (("client", by_client), ("server", by_server))
    }
    made = records.provenance(settings=variant, measured=records.now(), load=timing.load())
    return Used(
        op=operation.name,
        shape=operation.shape,
        variant=variant,
        used_by=used_by,
        **seconds,
        he_bytes=sent[HE],
        ot_bytes=sent[OT],
        kernels=as_json(**kernels_of(client, server)),
        provenance=as_json(**made),
    )


def profile_task(party: Party, wanted: Sequence[Operation]) -> list[list[Profile]]:
    """In a party process: warm up, then every operation once, again where it paid for a stock of transfers."""
    for operation in warm_up(wanted):
        names, function = place(party, operation), operation.function()
        for _ in range(2):
            party.run(function, names, ["y"])
    found = []
    for operation in wanted:
        names, function = place(party, operation), operation.function()
        party.prepare(function, names, ["y"])
        runs = [party.run(function, names, ["y"])]
        # Bytes of both directions decide, which both parties see alike.
        while all(map(refilled, runs)) and len(runs) < 3:
            runs.append(party.run(function, names, ["y"]))
        found.append(runs)
        for name in names:
            party.drop(name)
    return found


def wanted(parameters: Parameters) -> dict[Operation, str]:
    """Every operation of Table 4's rows in both programs, those of the rows `FIRST` first, and who has it how often."""
    config, context = parameters.at_scale("laptop").two_party_model()
    named = dict.fromkeys((*FIRST, *(row.name for row in published("aero").tables["4"].rows)))
    found: dict[Operation, list[str]] = {}
    for row in named:
        for program in PROGRAMS:
            for operation, many in operations(parse(row), config, program, context).items():
                found.setdefault(operation, []).append(f"{many:g} {row} {program}")
    return {operation: "; ".join(users) for operation, users in found.items()}


def measure(
    which: Mapping[Operation, str], variant: str, settings: Settings, path: Path, at_once: int = AT_ONCE
) -> list[Used]:
    """Run what `path` lacks, `at_once` operations a session; replaces `path` after each."""
    kept = [one for one in read(path) if one.variant == variant]
    known = {(one.op, one.shape) for one in kept}
    missing = [operation for operation in which if (operation.name, operation.shape) not in known]
    for start in range(0, len(missing), at_once):
        part = missing[start : start + at_once]
        client, server = run_parties(profile_task, part, part, settings)
        for operation, *runs in zip(part, client, server, strict=True):
            # The first run with the fewest bytes, which is the same run at both parties.
            one, other = min(zip(*runs, strict=True), key=lambda pair: pair[0].bytes)
            kept.append(used(operation, one, other, variant, which[operation]))
            print(f"{operation.name} {operation.shape}: {_told(kept[-1])}", flush=True)
        write(path, kept)
    return kept


def _told(one: Used) -> str:
    spent = ", ".join(f"{work} {share:.0%}" for work, share in one.shares("client").items())
    return f"{sum(one.seconds('client').values()):.1f} s ({spent}), {(one.he_bytes + one.ot_bytes) / 1e6:.1f} MB"


def write(path: Path, lines: Iterable[Used]) -> None:
    rows = [asdict(one) for one in sorted(lines, key=lambda one: (one.op, one.shape))]
    write_text(path, csv_text([field.name for field in fields(Used)], rows))


def read(path: Path) -> list[Used]:
    """The lines of `path`, none where there is no file. ValueError for columns that are not those of `Used`."""
    if not path.is_file():
        return []
    types = {field.name: str(field.type) for field in fields(Used)}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != list(types):
            raise ValueError(f"{path}: columns are {reader.fieldnames}, expected {list(types)}; measure again")
        convert: dict[str, Any] = {"str": str, "float": float, "int": int}
        return [Used(**{name: convert[types[name]](text) for name, text in line.items()}) for line in reader]


def composed(
    measured: Iterable[Used],
    costs: Operations,
    row: str,
    sizes: Sizes,
    program: str,
    networks: Mapping[str, Network],
) -> dict[str, Any] | None:
    """What a pass of `row` spends, in seconds: on which work, and on each network.

    None where operations of more than `UNPROFILED` of its seconds were not measured; those of less are "other", and
    "unprofiled" says how many seconds that are. Seconds of an operation are those of `costs`, split by the shares of
    its own run: of both parties' shares the mean, "low" and "high" the lesser and the greater. bandwidth: wire bytes,
    set-up among them, over the rate.
    """
    by_operation = {(one.op, one.shape): one for one in measured}
    needed, _ = counts(parse(row), sizes, program)
    spent_on = {key: many * costs.cost(*key).values["seconds"] for key, many in needed.items()}
    unprofiled = sum(spent for key, spent in spent_on.items() if key not in by_operation)
    if unprofiled > UNPROFILED * sum(spent_on.values()):
        return None
    seconds = {name: dict.fromkeys(WORK, 0.0) for name in ("client", "server")}
    bytes_ = dict.fromkeys((HE, OT), 0.0)
    crossing = rounds = 0.0
    for key, many in needed.items():
        cost, one = costs.cost(*key).values, by_operation.get(key)
        for party, spent in seconds.items():
            for work, share in (one.shares(party) if one else {OTHER: 1.0}).items():
                spent[work] += spent_on[key] * share
        for work in bytes_ if one else ():
            bytes_[work] += many * getattr(one, f"{work}_bytes")
        crossing += many * wire_bytes(key[0], cost["bytes_sent_client"], cost["bytes_sent_server"])
        rounds += many * cost["rounds"]
    work = {
        name: {
            "mean": (seconds["client"][name] + seconds["server"][name]) / 2,
            "low": min(seconds["client"][name], seconds["server"][name]),
            "high": max(seconds["client"][name], seconds["server"][name]),
        }
        for name in WORK
    }
    links = {
        name: {
            "bandwidth": network.transfer_seconds(crossing + costs.setup_bytes(needed), 0.0),
            "round trips": rounds * network.rtt_ms / 1e3,
        }
        for name, network in networks.items()
    }
    return {
        "architecture": row,
        "program": program,
        "seconds": work,
        "unprofiled": unprofiled,
        "bytes": bytes_,
        "links": links,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resources", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PATH)
    chosen = parser.parse_args(arguments)
    parameters = load()
    settings = Settings(**parameters.two_party.settings())
    found = measure(wanted(parameters), parameters.two_party.variant(), settings, chosen.out)
    print(f"{len(found)} operations: {chosen.out}; now python -m benchmarks.two_party")


if __name__ == "__main__":
    run_main(main)
