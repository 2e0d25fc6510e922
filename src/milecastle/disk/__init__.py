"""Durable files, locks and safe names, for stores and builds."""
