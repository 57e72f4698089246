"""AERO, reproduced: attention entropy and two-party private inference of language models, measured."""

__version__ = "0.1.0"
