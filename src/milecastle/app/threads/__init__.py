"""Threads outside a run: read, fork, update, tag, prune, migrate, close, and their children."""
