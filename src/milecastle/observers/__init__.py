"""Observers report what happens. A failing observer never breaks a run."""
