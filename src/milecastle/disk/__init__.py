"""Durable files, locks and safe names: what stores and builds both need."""
