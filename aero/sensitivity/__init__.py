"""`variance_sensitivity`: in-context regression with attention alone, and its sensitivity to the learning rate."""
