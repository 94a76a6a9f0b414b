"""What are the numbers: metrics and per-operator statistics."""
