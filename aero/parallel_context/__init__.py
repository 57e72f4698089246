"""Parallel context encoding (paper `parallel_context`): a context encoded in P independent segments, what that does to
attention entropy and to performance, and the two remedies: a shared attention sink and selective attention.

Shapes: B sequences, H heads, L layers, P segments, n tokens of context, m tokens of query, d_k width of a head.
"""
