"""Starting, owning, answering, submitting and streaming runs."""
