"""Forking, compiled codecs, printable text, and hints for wrong names."""
