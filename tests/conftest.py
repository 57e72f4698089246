"""What holds for every test module: none finds the report tracing another one's results."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_is_traced() -> Iterator[None]:
    """`aero.report.evidence.traced` notes files until the process ends, as one report is rendered in one process.

    A module of tests that traced would make the pages of a later one, on the same worker, name its files.
    """
    _forget()
    yield
    _forget()


def _forget() -> None:
    evidence = sys.modules.get("aero.report.evidence")
    if evidence is not None:
        evidence._root.clear()
        evidence._noted.clear()
