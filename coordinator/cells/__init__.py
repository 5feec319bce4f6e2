"""Cells: through them the work of all peers counts in swarms of more than 32."""
