"""Training of one run: the papers' optimiser and schedule, entropy while training, exact resumption."""
