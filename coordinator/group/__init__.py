"""Formation of groups for rounds: joining, rosters, leaders, schedule, pacing."""
