"""`variance_sensitivity`: in-context regression by attention alone, its learning-rate sensitivity, and its theory."""
