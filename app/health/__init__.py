"""What this machine has and lacks, in facts that `grpo-tui doctor` prints."""

from app.health.facts import Fact, Level

__all__ = ["Fact", "Level"]
