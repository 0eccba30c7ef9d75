"""The decode engine: the only process with MLX."""
