"""Decisions from spec and observation: revisions, the stages of a rollout, conditions and status. Pure."""
