"""Small protocols, each method with its obligation. What is below knows only these."""
