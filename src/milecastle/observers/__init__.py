"""Observers tell what happens. A failing observer never breaks a run."""
