"""What judges: checks, people and (later) LLM judges, merged into outcomes with provenance."""
