"""Observers report events. A failing observer never breaks a run."""
