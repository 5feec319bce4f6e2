"""Bit-exact arithmetic on flat float32 vectors: fragments, codecs, reduction, merge rules, the outer step."""
