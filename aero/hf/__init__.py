"""Hugging Face models: loading, measuring attention entropy, the entropy regulariser.

`attention` is the attention function that computes entropies; `measure` runs a model with it, or falls back on
`output_attentions`; `regularizer` trains with it; `loading` opens a folder.
"""
