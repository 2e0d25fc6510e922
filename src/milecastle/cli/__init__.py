"""The command line: one command for each operation on threads, runs and stores."""
