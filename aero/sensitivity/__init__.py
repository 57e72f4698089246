"""Variance and learning-rate sensitivity of attention (`variance_sensitivity`)."""
