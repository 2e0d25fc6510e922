"""Store upkeep: retention, deletion, erasure, copying, verification."""
