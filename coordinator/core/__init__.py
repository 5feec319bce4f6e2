"""Shared state of one peer's protocol core: actions, events, context, timeline, quorum, vote locks."""
