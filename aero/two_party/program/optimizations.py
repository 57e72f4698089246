"""Optimizations of the private forward pass, and the names of programs made of them.

"as_written" has none (stock SPU), "tuned" has all of `TUNED`. "as_written+NAME" adds one, "tuned-NAME" leaves one out,
"tuned+NAME" adds one that `TUNED` lacks. With absorbed_ffn a name may end in "@3,7": before these layers the change of
basis of the residual stream is undone.

"as_published" has none either. It is the configuration fitted to the bytes that AERO prints (`AS_PUBLISHED`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aero.architecture import Architecture
from aero.errors import known

Optimizations = frozenset[str]

OPTIMIZATIONS: dict[str, str] = {
    "lattice_lookup": "large embeddings by encrypted queries (aero.two_party.lattice.lookup)",
    "lattice_products": "multiplication by the server's matrices outside SPU (aero.two_party.lattice.matmul)",
    "lattice_attention": "Q K^T and P V outside SPU (aero.two_party.lattice.matmul)",
    "lattice_rest": "further products outside SPU: hint, vocabulary projection, single rows, row tiles, squared norms",
    "one_qkv": "Q, K and V as one matrix multiplication, 1/sqrt(d_k) folded in",
    "folded_norms": "gain and bias of every LayerNorm folded into the matrix that follows",
    "folded_ffn": "linear feed-forward folded into W_O; the He & Hofmann combination as one matrix",
    "absorbed_ffn": "linear feed-forward absorbed into the attention weights of its neighbours (with folded_ffn)",
    "causal_cover": "softmax on a block-lower-triangular cover of the visible entries",
    "split_exponential": "exponentials from each party's own powers of two (aero.two_party.lattice.share_steps)",
    "late_division": "division by the row sums after P V",
    "row_tiles": "scaling of rows as multiplication by diagonal tiles: LayerNorm, 1/t, the late division",
    "segmented_gelu": "GELU and SiLU by two comparisons and a polynomial",
    "last_row": "in the last layer and after it, only the last query row",
    "narrow_comparisons": "maxima, clipping, ReLU and the segments of GELU compared in a ring of 32 bits",
    "gelu_by_squares": "GELU by three squarings, closer than segmented_gelu (with segmented_gelu)",
    "wide_maxima": "maxima as a tournament of groups of four: half of the levels",
    "bounded_reciprocals": "row sums and LayerNorms inverted on a known range (with late_division, folded_norms)",
    "bounded_logits": "softmax without maxima, their bound checked, for qk_clip models (with late_division)",
}
"""All are exact up to fixed point except segmented_gelu and gelu_by_squares; bounded_reciprocals, as close as SPU, and
bounded_logits, less so (`bounded`); and split_exponential, which is closer to exp than SPU's own. Those that begin with
"lattice" rely on ring-LWE, as SPU's matrix multiplication does."""
NEEDS = {"absorbed_ffn": "folded_ffn", "gelu_by_squares": "segmented_gelu", "bounded_logits": "late_division"}
"""Optimizations without effect unless another is chosen too."""
TUNED: Optimizations = frozenset(OPTIMIZATIONS) - {
    "lattice_attention",
    "lattice_rest",
    "narrow_comparisons",
    "gelu_by_squares",
    "wide_maxima",
    "bounded_reciprocals",
    "bounded_logits",
}
"""The others are left out because the committed results were measured without them."""

UNREVIEWED: Optimizations = frozenset(
    {
        *("lattice_lookup", "lattice_products", "split_exponential", "narrow_comparisons", "gelu_by_squares"),
        *("bounded_reciprocals", "bounded_logits", "lattice_attention", "lattice_rest"),
    }
)
"""Cryptography of this project, outside SPU's protocols: own ring-LWE code and steps on shares."""

AS_PUBLISHED = "as_published"
"""The best fit to the printed bytes (docs/communication_fit.md): weights secret-shared, exponentials below e^-14 set
to 0 by a comparison, token ids looked up by secret comparisons, logits of all positions, beta and the He & Hofmann
gains folded into the matrices around them. Unlike the fit it uses this environment's SPU, and three matrices for Q, K
and V, because one would need 9 GB of encoded weights."""

_PROGRAM = re.compile(r"(as_written|tuned)((?:[+-][a-z_]+)*)(?:@([0-9]{1,4}(?:,[0-9]{1,4})*))?")


def parse_program(program: str) -> tuple[Optimizations, tuple[int, ...]]:
    """The optimizations of `program`, and the layers after "@". ValueError for an unknown program."""
    if program == AS_PUBLISHED:
        return frozenset({AS_PUBLISHED}), ()
    match = _PROGRAM.fullmatch(program)
    if match is None:
        raise ValueError(
            f"unknown program {program[:100]!r}: as_written, tuned, as_written+OPTIMIZATION, tuned+OPTIMIZATION, "
            f"tuned-OPTIMIZATION or {AS_PUBLISHED}"
        )
    found = set() if match[1] == "as_written" else set(TUNED)
    for sign, name in re.findall(r"([+-])([a-z_]+)", match[2]):
        (found.add if sign == "+" else found.discard)(known("optimization", name, OPTIMIZATIONS))
    found -= {name for name, other in NEEDS.items() if other not in found}
    return frozenset(found), tuple(int(n) for n in match[3].split(",")) if match[3] else ()


def program_name(optimizations: Iterable[str], rebased: tuple[int, ...] = ()) -> str:
    """The shortest name of the program with these optimizations and layers after "@"."""
    wanted = set(optimizations)
    if AS_PUBLISHED in wanted:
        return AS_PUBLISHED
    added = [f"+{name}" for name in OPTIMIZATIONS if name in wanted]
    changes = [_change(name) for name in OPTIMIZATIONS if (name in wanted) != (name in TUNED)]
    text = "tuned" + "".join(changes) if len(changes) <= len(added) else "as_written" + "".join(added)
    return text + ("@" + ",".join(map(str, rebased)) if rebased else "")


def reviewed(program: str) -> str:
    """`program` without UNREVIEWED. ValueError for an unknown program."""
    optimizations, rebased = parse_program(program)
    return program_name(optimizations - UNREVIEWED, rebased)


def on_its_own(name: str) -> str:
    """ "as_written" with one optimization, and with the one that it needs."""
    return f"as_written+{f'{NEEDS[name]}+' if name in NEEDS else ''}{name}"


def toggled(name: str) -> str:
    """ "tuned" without the optimization, or with it where "tuned" lacks it."""
    return f"tuned{_change(name)}"


def _change(name: str) -> str:
    return f"{'-' if name in TUNED else '+'}{name}"


def linear_ffn(architecture: Architecture) -> bool:
    """Whether only matrices act on the residual stream between two attentions."""
    return not architecture.layer_norm and architecture.ffn in ("linear", "fused")


def absorbs(architecture: Architecture, optimizations: Optimizations) -> bool:
    """Whether feed-forward networks are absorbed into attention weights, which changes the residual stream's basis."""
    return "absorbed_ffn" in optimizations and linear_ffn(architecture) and architecture.block != "he_hofmann"


def cacheable(architecture: Architecture, program: str) -> bool:
    """Whether keys and values can be cached: He & Hofmann layers also average all earlier rows, and "as_published" is
    the published whole pass."""
    return architecture.block != "he_hofmann" and program != AS_PUBLISHED


def check_rebased(architecture: Architecture, layers: int, program: str) -> None:
    """ValueError if `program` names layers after "@" that a model of `layers` layers does not have or cannot rebase."""
    optimizations, rebased = parse_program(program)
    if not rebased:
        return
    if not absorbs(architecture, optimizations):
        raise ValueError(f"{program}: {architecture} has no change of basis to undo; leave out the layers after @")
    beyond = [layer for layer in rebased if not 1 <= layer < layers]
    if beyond:
        raise ValueError(f"{program}: the layers after @ are 1 to {layers - 1}, not {beyond[0]}")
