"""Who takes part in a round: joining, rosters, leaders, schedule, pacing."""
