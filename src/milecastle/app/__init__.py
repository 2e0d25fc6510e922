"""The composition root: connects graphs with stores, drivers and observers."""
