"""Puts this folder on the import path, so that tests below it share helper modules."""

import os

# Two workers on two cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiling takes longer than running what tests compile.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")


def pytest_collection_modifyitems(items):
    """Tests of two parties first: their files take longest, and a worker should not be left alone with one."""
    items.sort(key=lambda item: "two_party" not in item.path.parts)
