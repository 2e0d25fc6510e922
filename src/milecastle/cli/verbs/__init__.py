"""The verbs, one module each, imported when they are used."""
