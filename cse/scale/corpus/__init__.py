"""A corpus of any size becomes shards of vectors, which can be searched.

``plan`` splits the corpus into pieces, ``pieces`` reads one, ``worker`` makes it a ``shard``, ``pool`` shares the
pieces out to actors of Ray (``cluster``), ``embed`` drives it all and goes on after a kill, ``search`` and ``index``
find vectors again.
"""
