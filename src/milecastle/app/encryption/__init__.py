"""Encryption of threads: the keyring and the key store."""
