"""The loader: packed store, pool, slots, predictor. The service part never imports MLX."""
