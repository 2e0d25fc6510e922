"""Anomalies of docs/evidence/faults.md in isolation: programs of at most 40 lines."""
