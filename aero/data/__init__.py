"""Corpora, tokenizers, token files and training batches.

`registry` opens a corpus, `tokenizer` turns its documents into ids, `tokens` keeps the ids in memory-mapped files,
`batches` cuts those into training sequences.
"""
