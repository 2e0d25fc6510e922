"""Graphs as durable tools of the Model Context Protocol. Needs the extra ``mcp``."""
