"""Embed a corpus of any size into shards of vectors, and search them.

``model`` finds the bundle or the domains of a bank, ``plan`` splits the corpus into pieces, ``pieces`` reads one,
``worker`` turns it into a ``shard`` and prepares the next meanwhile, ``pool`` shares the pieces out to Ray actors
(``cluster``), ``embed`` drives it all and resumes killed runs, ``search`` and ``index`` find vectors.
"""
