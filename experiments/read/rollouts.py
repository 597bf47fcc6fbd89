"""Queries on rollouts: groups of a step, tokens of a group, one prompt over the steps."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, func, select

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.paths import run_folder, tokens_file
from grpo_tui.experiments.db.tables import ROLLOUT, ROLLOUT_GROUP, ROLLOUT_REWARD
from grpo_tui.experiments.errors import NothingStoredError, OutsideStoreError
from grpo_tui.experiments.read.connection import Reading, among, as_view

Blob = tuple[tuple[int, ...], tuple[v.TokenRow, ...]]
GROUP = ROLLOUT_GROUP.c


class RolloutQuestions(Reading):
    def group_steps(self, run: int, origin: str = "train") -> tuple[int, ...]:
        query = select(GROUP.step).distinct().where(
            GROUP.run_id == run, GROUP.origin == origin, GROUP.hidden == 0
        )  # fmt: skip
        return tuple(self._column(query.order_by(GROUP.step)))

    def groups(
        self, run: int, step: int | None, origin: str | None = None, *, after: int = 0,
        limit: int | None = None,
    ) -> tuple[v.GroupView, ...]:  # fmt: skip
        """Return the groups of a step, or of all, with their rollouts.

        To page, pass the last group's key as `after`.
        """
        origins = (origin,) if origin else ("train", "eval", "pinned")
        query = self._of_run(run).where(GROUP.id > after, GROUP.origin.in_(origins)).limit(limit)
        if step is None:
            return self._groups(query.order_by(GROUP.id))
        query = query.where(GROUP.step == step)
        return self._groups(query.order_by(GROUP.origin.desc(), GROUP.idx, GROUP.seq))

    def group(self, group: int) -> v.GroupView:
        for found in self.groups_by_key([group]):
            return found
        raise NothingStoredError(f"group {group} is not in the store")

    def groups_by_key(self, keys: Sequence[int]) -> tuple[v.GroupView, ...]:
        """Return groups with their rollouts, in the order of their keys."""
        query = self._select(v.GroupView, ROLLOUT_GROUP).where(among(GROUP.id, keys))
        return self._groups(query.order_by(GROUP.id))

    def history(self, run: int, prompt_hash: str) -> tuple[v.GroupView, ...]:
        """Return the groups of the same prompt over the steps, oldest first."""
        query = self._of_run(run).where(GROUP.prompt_hash == prompt_hash)
        return self._groups(query.order_by(GROUP.step, GROUP.seq))

    def of_example(self, run: int, example_key: str) -> tuple[v.GroupView, ...]:
        """Return the groups of one example, oldest first, without rollouts."""
        query = self._of_run(run).where(GROUP.example_key == example_key)
        return self._views(v.GroupView, query.order_by(GROUP.step, GROUP.seq))

    def scores(self, run: int) -> dict[str, dict[str, tuple[float | None, ...]]]:
        """Return each function's scores of the newest answers to each training problem."""
        newest = func.max(GROUP.step).over(partition_by=GROUP.example_key)
        score = ROLLOUT_REWARD.c
        query = (
            select(GROUP.example_key, score.function, score.value, GROUP.step == newest)
            .join_from(ROLLOUT_GROUP, ROLLOUT)
            .join(ROLLOUT_REWARD)
            .where(GROUP.run_id == run, GROUP.origin == "train", GROUP.hidden == 0)
            .order_by(GROUP.id, ROLLOUT.c.idx)
        )
        scores: dict[str, dict[str, tuple[float | None, ...]]] = {}
        for example, function, value, is_newest in self._all(query):
            if is_newest:
                by_function = scores.setdefault(example, {})
                by_function[function] = (*by_function.get(function, ()), value)
        return scores

    def examples(self, run: int, origin: str, *, since: int = 0) -> dict[str, tuple[str, str]]:
        """Return prompt and target of each example with groups of this origin, oldest first."""
        first = func.min(GROUP.id)  # of its row are the other columns, too
        rows = self._all(
            select(GROUP.example_key, GROUP.prompt_text, GROUP.target, first)
            .where(
                GROUP.run_id == run, GROUP.origin == origin, GROUP.step >= since, GROUP.hidden == 0
            )
            .group_by(GROUP.example_key)
            .order_by(first)
        )
        return {key: (prompt, target) for key, prompt, target, _ in rows}

    def pinned(self, run: int) -> tuple[v.PinnedPrompt, ...]:
        """Return the pinned prompts of a run, in the order they were pinned."""
        query = self._of_run(run).where(GROUP.origin == "pinned")
        by_hash: dict[str, list[v.GroupView]] = {}
        for view in self._views(v.GroupView, query.order_by(GROUP.step, GROUP.idx)):
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
        rows = self._all(
            select(GROUP.id, GROUP.seq).where(
                among(GROUP.id, groups), GROUP.run_id == run, GROUP.has_tokens
            )
        )
        blobs = self._blobs(run, [seq for _, seq in rows])
        return {
            key: v.TokenView(group=key, prompt_ids=blobs[seq][0], rows=blobs[seq][1])
            for key, seq in rows
            if seq in blobs
        }

    def _blobs(self, run: int, seqs: Sequence[int]) -> dict[int, Blob]:
        """The recorded token numbers; none where the store names a file elsewhere."""
        from grpo_tui.experiments.db.tokens import read_blobs

        try:
            path = tokens_file(run_folder(self.path, self._short(run)))
        except OutsideStoreError:
            return {}
        return read_blobs(path, seqs)

    # -- rows to values -------------------------------------------------------------------------

    def _of_run(self, run: int) -> Select[Any]:
        query = self._select(v.GroupView, ROLLOUT_GROUP)
        return query.where(GROUP.run_id == run, GROUP.hidden == 0)

    def _groups(self, query: Select[Any]) -> tuple[v.GroupView, ...]:
        rows = self._all(query)
        rollouts = self._rollouts([row.key for row in rows])
        return tuple(
            as_view(v.GroupView, row, rollouts=tuple(rollouts.get(row.key, ()))) for row in rows
        )

    def _rollouts(self, groups: Iterable[int]) -> dict[int, list[v.RolloutView]]:
        columns = ROLLOUT.c
        query = self._select(v.RolloutView, ROLLOUT).where(among(columns.group_id, groups))
        rows = self._all(query.order_by(columns.group_id, columns.idx))
        rewards = self._rewards([row.key for row in rows])
        found: dict[int, list[v.RolloutView]] = {}
        for row in rows:
            view = as_view(v.RolloutView, row, rewards=tuple(rewards.get(row.key, ())))
            found.setdefault(view.group, []).append(view)
        return found

    def _rewards(self, rollouts: Iterable[int]) -> dict[int, list[ev.RewardValue]]:
        columns = ROLLOUT_REWARD.c
        query = self._select(ev.RewardValue, ROLLOUT_REWARD, columns.rollout_id, name="function")
        query = query.where(among(columns.rollout_id, rollouts))
        found: dict[int, list[ev.RewardValue]] = {}
        for row in self._all(query.order_by(columns.rollout_id, columns.position)):
            found.setdefault(row.rollout_id, []).append(as_view(ev.RewardValue, row))
        return found
