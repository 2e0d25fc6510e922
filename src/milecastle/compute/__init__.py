"""Remote execution: processes on this machine, and Ray actors."""
