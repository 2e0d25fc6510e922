"""Thread encryption: the keyring and the key store."""
