"""The engine decides and does no I/O: a generator that yields effects and receives outcomes."""
