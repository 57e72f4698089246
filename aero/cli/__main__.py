"""`python -m aero.cli`, the same as `aero`."""

from aero.cli import run

if __name__ == "__main__":
    run()
