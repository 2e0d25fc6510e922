"""What users write: nodes, edges and a state. Checked, then frozen, when compiled."""
