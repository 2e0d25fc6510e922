"""Integrations with other libraries: one module or folder each, imported only when used."""
