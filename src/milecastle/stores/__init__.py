"""Stores keep logs. Each is a folder of its own and passes ``milecastle.testing.StoreContract``."""
