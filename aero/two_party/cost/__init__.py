"""What a private forward pass costs: measured operations, the cost model, composition."""
