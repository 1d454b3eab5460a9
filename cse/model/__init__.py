"""Backbone, prompts, pooler and the encoder that combines them.

Tensor names end in their shape, here and in ``losses``, ``training`` and ``export``:

======  =============================================  ======  ==================================
letter  dimension                                      letter  dimension
======  =============================================  ======  ==================================
``B``   rows (sentences) of a batch                    ``H``   attention heads
``L``   tokens of a row, padding included              ``K``   width per head
``P``   prompt vectors per layer (k)                   ``D``   hidden width, ``D = H * K``
``N``   candidates a row is compared with              ``V``   views (anchor, positive, negative)
``A``   anchors of this worker; all rows, if alone
======  =============================================  ======  ==================================
"""
