"""Documents for display: threads, runs, checkpoints, questions and differences."""
