"""The private forward pass: operations, nonlinear functions, optimizations, weights."""
