"""How peers find and address each other: identities, signed records, the record store, invites.

Knows nothing about training. Only `dht.daemon` and `dht.hivemind_store` touch hivemind.
"""
