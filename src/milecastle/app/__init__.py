"""The composition root: graphs meet stores, drivers and observers here."""
