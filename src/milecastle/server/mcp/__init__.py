"""Graphs as durable tools for the Model Context Protocol. Needs the extra ``mcp``."""
