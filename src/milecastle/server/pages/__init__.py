"""The web view: HTML pages for ``views``.

``table.py`` lists the pages. A page is a function that gets an ``ApiRequest`` and returns a
``PageView``: a template, its values, and a command line with the same output. ``rendering.py``
makes HTML of it.
"""
