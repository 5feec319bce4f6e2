"""How peers find and address each other: identities, signed records, the record store, invites.

Knows nothing about training. Only `daemon`, `answer_guard`, `guard` and `hivemind_*` touch hivemind.
"""
