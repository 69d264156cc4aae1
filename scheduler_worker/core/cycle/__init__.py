"""The scheduling cycle: work in, proposals out, verdicts in, outcomes out."""
