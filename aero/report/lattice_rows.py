"""AERO's rows tuned with products outside SPU (`lattice_products`), beside the programs measured together with it."""

from __future__ import annotations

from pathlib import Path

PATH = Path("results/two_party/lattice_rows.csv")
"""As `python -m benchmarks.lattice_products` keeps it."""
PROGRAMS = ("as_published", "tuned", "tuned+lattice_products")
