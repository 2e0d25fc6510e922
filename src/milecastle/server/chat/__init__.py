"""Chat front ends: interfaces of other projects, each a folder, over the same calls as ``/v1``.

Rules:

- Requests are checked like all others: the table says which scopes, and names no tenant.
- What is sent of a thread is what ``/v1`` sends of it, read once for all readers and redacted. It
  is only written in another form.
- What an interface asks for and Milecastle cannot do is refused, never ignored.
"""
