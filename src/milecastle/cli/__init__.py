"""The command line: one verb for each thing that people do with threads, runs and stores."""
