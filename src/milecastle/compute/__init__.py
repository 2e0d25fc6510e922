"""Where tasks run if not here: processes of this machine, and the nodes of a Ray cluster."""
