"""Chat front ends: interfaces of other projects, each a folder, over the same calls as ``/v1``.

Rules:

- Requests are checked like all others: the table says which scopes, and names no tenant.
- A thread is sent as ``/v1`` sends it, read once for all readers and redacted. It
  is only written in another form.
- A request Milecastle cannot fulfil is refused, never ignored.
"""
