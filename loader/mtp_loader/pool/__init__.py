"""The pool: its layout, the slot table with the four rules, the mapped region and the threads that fill it."""
