"""Integrations: other libraries whose state is stored here. Each is imported only when used."""
