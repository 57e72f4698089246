"""What makes a private pass cheaper without changing what it computes: switches, and the programs made of them.

"as_written" has none, "tuned" has all of `TUNED`. "as_written+NAME" adds one alone, "tuned-NAME" leaves one out,
"tuned+NAME" adds one that is not among them. "fewer_squarings" does nothing beside "split_exponential".
"@3,7" behind it names the layers before which the residual stream is put back into its own basis (absorbed_ffn).

"as_published" saves nothing and spends more: it is the configuration that explains the bytes AERO prints, as far as a
program can be it (`AS_PUBLISHED`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from aero.architecture import Architecture

Savings = frozenset[str]

SAVINGS: dict[str, str] = {
    "lattice_lookup": "large embeddings by encrypted queries (aero.two_party.lattice.lookup)",
    "lattice_products": "products with the server's matrices outside SPU (aero.two_party.lattice.matmul)",
    "one_qkv": "Q, K and V as one product, 1/sqrt(d_k) inside",
    "folded_norms": "gain and bias of every LayerNorm folded into the product behind it",
    "folded_ffn": "linear feed-forward folded into W_O; the He & Hofmann combination as one product",
    "absorbed_ffn": "linear feed-forward absorbed into the attention weights of its neighbours (with folded_ffn)",
    "causal_cover": "softmax on a block-lower-triangular cover of the visible entries",
    "split_exponential": "exponentials from each party's own powers of two (aero.two_party.lattice.share_steps)",
    "late_division": "division by the row sums after P V",
    "row_tiles": "a row times a number as products of diagonal tiles: LayerNorm, 1/t, the late division",
    "segmented_gelu": "GELU by two comparisons and a polynomial",
    "last_row": "in the last layer, and behind it, only the last query row",
    "narrow_comparisons": "maxima, clipping, ReLU and the segments of GELU compared in a ring of 32 bits",
    "fewer_squarings": "exponentials by five squarings and one product (in place of split_exponential)",
}
"""Exact but for the fixed point: all but split_exponential and fewer_squarings, which are nearer to exp than SPU's, and
segmented_gelu. lattice_lookup and lattice_products rest on the hardness of learning with errors in rings, as SPU's own
products do."""
TUNED: Savings = frozenset(SAVINGS) - {"narrow_comparisons", "fewer_squarings"}
"""Those of "tuned". Comparisons in 32 bits came after what is kept of it had been measured, and can be added by name;
fewer squarings are for programs without split exponentials, which are cheaper."""

# The feed-forward's products and the logits are in slices too, for the same reason, and ids are looked up in pairs.
AS_PUBLISHED = "as_published"
"""The best fit of docs/forensics.md as a program, over "as_written": weights secret-shared between the parties,
exponentials below e^-14 set to 0 by a comparison, token ids looked up in the table by secret comparisons, logits of all
positions, beta of a scaled feed-forward and the He & Hofmann gains folded into the matrices around them. Two things of
the fit are left out: SPU is this environment's, and Q, K and V are three products, because one would need 9 GB of
encoded weights."""

_PROGRAM = re.compile(r"(as_written|tuned)((?:[+-][a-z_]+)*)(?:@([0-9]{1,4}(?:,[0-9]{1,4})*))?")


def chosen(program: str) -> tuple[Savings, tuple[int, ...]]:
    """The savings of `program`, and the layers it rebases at. ValueError for a program that cannot be."""
    if program == AS_PUBLISHED:
        return frozenset({AS_PUBLISHED}), ()
    match = _PROGRAM.fullmatch(program)
    if match is None:
        raise ValueError(
            f"unknown program {program[:100]!r}: as_written, tuned, as_written+SAVING, tuned+SAVING, tuned-SAVING "
            f"or {AS_PUBLISHED}"
        )
    savings = set() if match[1] == "as_written" else set(TUNED)
    for sign, name in re.findall(r"([+-])([a-z_]+)", match[2]):
        if name not in SAVINGS:
            near = difflib.get_close_matches(name[:100], SAVINGS, n=1)
            raise ValueError(f"unknown saving {name[:100]!r}: {near[0] + '?' if near else ', '.join(SAVINGS)}")
        (savings.add if sign == "+" else savings.discard)(name)
    if "folded_ffn" not in savings:
        savings.discard("absorbed_ffn")
    if "split_exponential" in savings:
        savings.discard("fewer_squarings")
    return frozenset(savings), tuple(int(n) for n in match[3].split(",")) if match[3] else ()


def linear_ffn(architecture: Architecture) -> bool:
    """Whether the residual stream goes through nothing but matrices between two attentions."""
    return not architecture.layer_norm and architecture.ffn in ("linear", "fused")


def absorbs(architecture: Architecture, savings: Savings) -> bool:
    """Whether a program with `savings` absorbs feed-forward networks of `architecture`: only then anything can be put
    back."""
    return "absorbed_ffn" in savings and linear_ffn(architecture) and architecture.block != "he_hofmann"


def check_put_back(architecture: Architecture, layers: int, program: str) -> None:
    """ValueError if `program` names layers to put back before where a model of `layers` layers has nothing to."""
    savings, rebased = chosen(program)
    if not rebased:
        return
    if not absorbs(architecture, savings):
        raise ValueError(f"{program}: {architecture} has nothing to put back, so no layers can stand behind @")
    beyond = [layer for layer in rebased if not 1 <= layer < layers]
    if beyond:
        raise ValueError(f"{program}: the layers behind @ are from 1 to {layers - 1}, not {beyond[0]}")


def changed(name: str) -> str:
    """ "tuned" without the saving, or with it where "tuned" lacks it; fewer squarings stand for split exponentials."""
    return f"tuned{'-split_exponential' if name == 'fewer_squarings' else ''}{_change(name)}"


def _change(name: str) -> str:
    return f"{'-' if name in TUNED else '+'}{name}"


def named(savings: Iterable[str], rebased: tuple[int, ...] = ()) -> str:
    """The program with these savings, in its shortest form from "tuned" or "as_written"."""
    savings = set(savings)
    if AS_PUBLISHED in savings:
        return AS_PUBLISHED
    added = [name for name in SAVINGS if name in savings]
    changes = [_change(name) for name in SAVINGS if (name in savings) != (name in TUNED)]
    text = "as_written" + "".join(f"+{n}" for n in added)
    if len(changes) <= len(added):
        text = "tuned" + "".join(changes)
    return text + ("@" + ",".join(map(str, rebased)) if rebased else "")
