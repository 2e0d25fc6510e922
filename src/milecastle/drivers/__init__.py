"""Drivers perform effects: one blocking, one on an event loop. They decide nothing."""
