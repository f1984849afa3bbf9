"""Design spaces, candidates, the two search engines, the scheduler, and the cost-model plug-in for MetaSchedule."""
