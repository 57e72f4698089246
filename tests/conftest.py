"""Puts this folder on the import path, so that tests below it share helper modules."""

import gc
import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind without it
# Two workers on two cores: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

gc.disable()


def pytest_collection_finish():
    """From here on garbage is collected, seldom, and without going through all that was imported."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def pytest_configure(config):
    """Compile quickly rather than well: most of the default tests run what they compile once. The slow ones do not."""
    if "not slow" in config.option.markexpr:
        flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        os.environ.setdefault("XLA_FLAGS", flags)
    from aero.two_party.runtime import processes  # after OMP_NUM_THREADS

    # Parties run functions of test modules, which import these.
    processes.PRELOADED += ("pytest", "aero.two_party.serving.answer")


def pytest_collection_modifyitems(items):
    """Tests of two parties, of training and on a clone first: they take longest, and none should be the last alone."""
    first = ("two_party", "training", "test_walk.py")
    items.sort(key=lambda item: [name not in item.path.parts for name in first])


def pytest_sessionfinish():
    gc.freeze()  # pytest collects garbage five times at its end
