"""Upkeep of stores: retention, deletion, erasure, copying, verification."""
