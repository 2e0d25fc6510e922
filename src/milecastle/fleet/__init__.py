"""The fleet: workers running a store's threads, many at once, on as many machines as wanted.

The index of threads in the store is the only truth: nothing here is lost with a process.
"""
