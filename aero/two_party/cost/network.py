"""Bytes that take time on a network."""

from __future__ import annotations

BOTH_WAYS_AT_ONCE = frozenset(
    {"softmax_plain", "softmax_cover", "gelu_plain", "gelu_exact", "gelu_segments", "gelu_squares"}
    | {"scores", "mix", "scale_rows", "scale_row_tiles"}
    | {"softmax_clipped", "linear_shared", "vocabulary_slice_shared", "scale_shared"}
)
"""Kinds of operation that mostly multiply two shared tensors (spu 0.9.5, mpc/cheetah/arithmetic.cc, MulAA), measured on
a link of limited rate in results/two_party/full_links.csv."""


def wire_bytes(op: str, bytes_client: float, bytes_server: float) -> float:
    """Bytes of a measured operation that take time on a link, `op` as in ops.csv.

    Cheetah multiplies and squares shared tensors of 16,384 elements or more in two halves at once, one in each
    direction; multiplication by one party's own values and comparisons alternate.
    """
    both_at_once = op.partition("(")[0] in BOTH_WAYS_AT_ONCE
    return max(bytes_client, bytes_server) if both_at_once else bytes_client + bytes_server
