"""Hugging Face models: loading, measuring attention entropy, the entropy regulariser.

`attention` is the attention function that computes entropies; `measure` runs a model with it;
`regularizer` trains with it; `loading` opens a folder.
"""
