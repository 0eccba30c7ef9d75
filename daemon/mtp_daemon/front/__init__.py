"""The front: client socket, queue, token logs and the supervision of both children. No MLX here."""
