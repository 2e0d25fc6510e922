"""What Python itself lacks here: forks of processes, compiled codecs, printable text."""
