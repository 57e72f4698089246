"""`stages.train` in float64, for comparisons in which rounding must not grow: run by name."""

import torch

from aero.errors import run_main
from stages.train import main

torch.set_default_dtype(torch.float64)
run_main(main)
