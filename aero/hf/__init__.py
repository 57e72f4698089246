"""Hugging Face models: loading, measuring attention entropy, the entropy regulariser."""
