"""Puts this folder on the import path, so that tests below it share helper modules."""

import os

# Two workers on two cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
