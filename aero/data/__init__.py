"""Corpora, tokenizer, token files and training batches.

The way of a text: `corpora` streams documents, `tokenizer` turns them into ids, `tokens` keeps the ids in
memory-mapped files, `batches` cuts those into training sequences.
"""
