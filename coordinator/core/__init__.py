"""State of one peer's protocol that all of it shares: actions, events, context, timeline, quorum, vote locks."""
