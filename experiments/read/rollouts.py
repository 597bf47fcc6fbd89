"""Queries on rollouts: groups of a step, tokens of a group, one prompt over the steps."""

from collections.abc import Sequence
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.paths import run_folder, tokens_file
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.read.connection import Reading, marks, text
from grpo_tui.experiments.read.shapes import Shape

GROUP = Shape(v.GroupView, "rollout_group")
ROLLOUT = Shape(v.RolloutView, "rollout")
REWARD = Shape(ev.RewardValue, "rollout_reward", name="function")
CHUNK = 400


class RolloutQuestions(Reading):
    def group_steps(self, run: int, origin: str = "train") -> tuple[int, ...]:
        steps = self._column(
            "SELECT DISTINCT step FROM rollout_group WHERE run_id = ? AND origin = ? "
            "AND hidden = 0 ORDER BY step",
            (run, origin),
        )
        return tuple(steps)

    def groups(
        self, run: int, step: int | None, origin: str | None = None, *, after: int = 0,
        limit: int | None = None,
    ) -> tuple[v.GroupView, ...]:  # fmt: skip
        """Return the groups of a step, or of all, with their rollouts.

        To page, pass the last group's key as `after`.
        """
        origins = (origin,) if origin else ("train", "eval", "pinned")
        condition = f"run_id = ? AND hidden = 0 AND id > ? AND origin IN ({marks(origins)})"
        values: list[int | str] = [run, after, *origins]
        if step is not None:
            condition += " AND step = ?"
            values.append(step)
        order = "id" if step is None else "origin DESC, idx, seq"
        return self._groups(
            f"WHERE {condition} ORDER BY {order} LIMIT ?",
            [*values, -1 if limit is None else limit],
        )

    def group(self, group: int) -> v.GroupView:
        found = self.groups_by_key([group])
        if not found:
            raise NothingStoredError(f"group {group} is not in the store")
        return found[0]

    def groups_by_key(self, keys: Sequence[int]) -> tuple[v.GroupView, ...]:
        """Return groups with their rollouts, in the order of their keys."""
        return self._groups(f"WHERE id IN ({marks(keys)}) ORDER BY id", keys)

    def history(self, run: int, prompt_hash: str) -> tuple[v.GroupView, ...]:
        """Return the groups of the same prompt over the steps, oldest first."""
        return self._groups(
            "WHERE run_id = ? AND prompt_hash = ? AND hidden = 0 ORDER BY step, seq",
            (run, escape(prompt_hash)),
        )

    def of_example(self, run: int, example_key: str) -> tuple[v.GroupView, ...]:
        """Return the groups of one example, oldest first, without rollouts."""
        return self._groups(
            "WHERE run_id = ? AND example_key = ? AND hidden = 0 ORDER BY step, seq",
            (run, escape(example_key)), False,
        )  # fmt: skip

    def scores(self, run: int) -> dict[str, dict[str, tuple[float | None, ...]]]:
        """Return each function's scores of the newest answers to each training problem."""
        found: dict[str, dict[str, tuple[float | None, ...]]] = {}
        rows = self._all(
            "SELECT g.example_key, w.function, w.value, max(g.step) OVER (PARTITION BY "
            "g.example_key) AS newest, g.step FROM rollout_group g "
            "JOIN rollout r ON r.group_id = g.id JOIN rollout_reward w ON w.rollout_id = r.id "
            "WHERE g.run_id = ? AND g.origin = 'train' AND g.hidden = 0 ORDER BY g.id, r.idx",
            (run,),
        )
        for key, function, value, newest, step in rows:
            if step == newest:
                one = found.setdefault(text(key), {})
                one[text(function)] = (*one.get(text(function), ()), value)
        return found

    def examples(self, run: int, origin: str, *, since: int = 0) -> dict[str, tuple[str, str]]:
        """Return prompt and target of each example with groups of this origin, oldest first."""
        rows = self._all(
            "SELECT example_key, prompt_text, target, min(id) FROM rollout_group "
            "WHERE run_id = ? AND origin = ? AND step >= ? AND hidden = 0 "
            "GROUP BY example_key ORDER BY min(id)",
            (run, origin, since),
        )
        return {text(key): (text(prompt), text(target)) for key, prompt, target, _ in rows}

    def pinned(self, run: int) -> tuple[v.PinnedPrompt, ...]:
        """Return the pinned prompts of a run, in the order they were pinned."""
        views = self._groups(
            "WHERE run_id = ? AND origin = 'pinned' AND hidden = 0 ORDER BY step, idx",
            (run,), False,
        )  # fmt: skip
        by_hash: dict[str, list[v.GroupView]] = {}
        for view in views:
            by_hash.setdefault(view.prompt_hash, []).append(view)
        return tuple(
            v.PinnedPrompt(
                example_key=same[0].example_key, prompt_hash=key, prompt_text=same[0].prompt_text,
                target=same[0].target, steps=tuple(view.step for view in same),
                reward_means=tuple(view.reward_mean for view in same),
            )
            for key, same in by_hash.items()
        )  # fmt: skip

    def tokens(self, run: int, group: int) -> v.TokenView | None:
        """Return the token numbers of a group; None if they were not recorded."""
        return self.tokens_of(run, [group]).get(group)

    def tokens_of(self, run: int, groups: Sequence[int]) -> dict[int, v.TokenView]:
        """Return the token numbers of groups by their keys; those not recorded are omitted."""
        from grpo_tui.experiments.db.tokens import read_blobs

        rows = self._all(
            "SELECT id, seq FROM rollout_group "
            f"WHERE id IN ({marks(groups)}) AND run_id = ? AND has_tokens",
            (*groups, run),
        )
        found = read_blobs(
            tokens_file(run_folder(self.path, self._short(run))), [seq for _, seq in rows]
        )
        return {
            key: v.TokenView(group=key, prompt_ids=found[seq][0], rows=found[seq][1])
            for key, seq in rows
            if seq in found
        }

    # -- rows to values -------------------------------------------------------------------------

    def _groups(
        self, rest: str, values: Sequence[Any], with_rollouts: bool = True
    ) -> tuple[v.GroupView, ...]:
        columns = self._columns(GROUP, rest, values)
        if with_rollouts:
            rollouts = self._rollouts(columns["key"])
            columns["rollouts"] = [tuple(rollouts.get(key, ())) for key in columns["key"]]
        return tuple(GROUP.make(columns))

    def _rollouts(self, groups: Sequence[int]) -> dict[int, list[v.RolloutView]]:
        found: dict[int, list[v.RolloutView]] = {}
        for place in range(0, len(groups), CHUNK):
            part = groups[place : place + CHUNK]
            rest = f"WHERE group_id IN ({marks(part)}) ORDER BY group_id, idx"
            columns = self._columns(ROLLOUT, rest, part)
            rewards = self._rewards(columns["key"])
            columns["rewards"] = [tuple(rewards.get(key, ())) for key in columns["key"]]
            for view in ROLLOUT.make(columns):
                found.setdefault(view.group, []).append(view)
        return found

    def _rewards(self, rollouts: Sequence[int]) -> dict[int, list[ev.RewardValue]]:
        found: dict[int, list[ev.RewardValue]] = {}
        for place in range(0, len(rollouts), CHUNK):
            part = rollouts[place : place + CHUNK]
            rest = f"WHERE rollout_id IN ({marks(part)}) ORDER BY rollout_id, position"
            columns = self._columns(REWARD, rest, part, "rollout_id")
            for key, view in zip(columns["rollout_id"], REWARD.make(columns), strict=True):
                found.setdefault(key, []).append(view)
        return found
