"""Watch a run of TRL's GRPOTrainer: `trl.watch(trainer)` before `trainer.train()`."""

from grpo_tui.trl.hooks import watch

__all__ = ["watch"]
