"""Programs that look at runs: checkpoints, exact resume, schedules, profiles, comparisons, TensorBoard."""
