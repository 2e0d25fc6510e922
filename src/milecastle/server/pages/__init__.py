"""The web view: HTML pages of ``views``.

``table.py`` lists the pages. A page is a function that gets an ``ApiRequest`` and returns a
``PageView``: a template, its values, and the command line showing the same. ``rendering.py``
makes HTML of it.
"""
