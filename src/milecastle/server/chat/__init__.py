"""Chat front ends: other projects' interfaces, each a folder, over the same calls as ``/v1``.

Rules:

- Requests are checked like all others: the table says which scopes, and names no tenant.
- A thread's events are those of ``/v1``, read once for all readers and redacted; only their form
  differs.
- A request Milecastle cannot fulfil is refused, never ignored.
"""
