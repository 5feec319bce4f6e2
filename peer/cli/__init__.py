"""The commands of `muster`, one file each."""
