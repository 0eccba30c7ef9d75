"""The loader's process: sockets, the slot table, reader threads, and what it tells front and engine."""
