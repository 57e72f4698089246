"""Puts this folder on the import path, so that tests below it share helper modules."""
