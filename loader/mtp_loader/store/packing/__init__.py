"""Turns a checkpoint into a packed store, in bounded memory. The only part of the loader that uses MLX."""
