"""The engine as a process: its two threads, its start, and one request after the other.

The I/O thread owns the front's socket and the lifeline. The MLX thread is the main one and owns everything else.
"""
