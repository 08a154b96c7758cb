"""Managed ids: `data.sparse.NAME.ids = "managed"`, whose rows are given and taken while training.

Begin with `managed_ids.py`, the way of a batch from raw ids to rows. `row_map.py` decides the rows of ids, `blocks.py`
has the rows that an id can have, `admission.py` counts ids before they get a row, and `exchange.py` sends ids and rows
between ranks. The rule of a feature, which an export needs, too, is `trainer/rules/managed.py`; the role of this folder
in training is `trainer/training/id_map.py`.
"""
