"""AG-UI 1.0: one request is one run, answered by its events. See https://ag-ui.com/spec/1.0."""
