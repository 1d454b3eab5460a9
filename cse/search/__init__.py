"""Documents as a table of passages and words, and how it is searched.

``corpus`` reads documents, ``model`` is what encodes them, ``rows`` splits long ones and makes their rows (``workers``
with Ray), ``index`` brings a table up to date, ``table`` searches it by ``words``, vectors and both (``hybrid``).
"""
