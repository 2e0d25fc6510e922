"""Small protocols, each method with its obligation. Lower layers know only these."""
