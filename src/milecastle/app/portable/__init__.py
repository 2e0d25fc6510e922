"""Portable files: a thread at an interrupt, saved to a file and resumed from it."""
