"""`python -m aero.cli`."""

from aero.cli import run

if __name__ == "__main__":
    run()
