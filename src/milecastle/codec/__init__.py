"""Values to bytes and back, deltas and the envelope."""
