"""`python -m aero.cli`, the same as `aero`."""

from aero.cli import run

run()
