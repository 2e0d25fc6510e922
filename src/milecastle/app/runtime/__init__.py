"""How a call becomes a run, and crash recovery: start, resume, take over, answer, stream."""
