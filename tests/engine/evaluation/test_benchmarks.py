"""Standard benchmarks: what is refused, what lm-eval's results mean, and the numbers themselves.

What needs lm-eval is NOT RUN without it: `pip install 'grpo-tui[lm-eval]'`.
"""

import json
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_engine.errors import ConfigError, MissingPackageError
from grpo_engine.evaluation import benchmarks
from grpo_engine.evaluation.benchmarks import Benchmarks
from grpo_engine.metrics import is_stderr, spec, stderr_of
from grpo_tui.app.cli.main import main
from grpo_tui.experiments.reader import StoreReader

needs_lm_eval = pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="NOT RUN: lm-eval is not installed"
)
TASK = """\
task: local_sums
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 32}
process_results: !function scores.score
metric_list: [{metric: right, aggregation: mean, higher_is_better: true}]
"""
FUNCTION = """\
def score(doc, results):
    return {"right": float(results[0].rstrip("</answer>").endswith(doc["answer"]))}
"""


def test_a_missing_program_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'grpo-tui\[lm-eval\]'"):
        Benchmarks(tasks=("gsm8k",)).check()


def test_a_folder_of_tasks_is_read_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "find_spec", lambda _: True)
    requested = Benchmarks(tasks=("local_sums",), folder=tmp_path)
    file = tmp_path / "sums.yaml"
    file.write_text("task: local_sums\n")
    requested.check()
    assert not requested.code
    file.write_text(TASK)
    assert requested.code == (file,)
    file.write_text("task: t\ndataset_kwargs: {trust_remote_code: true}\n")
    with pytest.raises(ConfigError, match=r"sums.yaml sets trust_remote_code"):
        requested.check()
    with pytest.raises(ConfigError, match="is not a folder of task files"):
        Benchmarks(tasks=("t",), folder=file).check()


def test_each_metric_of_a_task_has_its_standard_error() -> None:
    results = {
        "results": {
            "gsm8k": {
                "alias": "gsm8k",
                "exact_match,strict-match": 0.25,
                "exact_match_stderr,strict-match": 0.09,
                "exact_match,flexible-extract": 0.5,
                "exact_match_stderr,flexible-extract": "N/A",
            },
            "wikitext": {"word_perplexity,none": 12.0, "word_perplexity_stderr,none": float("nan")},
        },
        "n-samples": {"gsm8k": {"original": 1319, "effective": 24}},
        "higher_is_better": {"wikitext": {"word_perplexity": False}},
    }
    scores = list(benchmarks._scores(results, "after"))
    assert [(s.task, s.metric, s.value, s.stderr, s.samples) for s in scores] == [
        ("gsm8k", "exact_match (strict-match)", 0.25, 0.09, 24),
        ("gsm8k", "exact_match (flexible-extract)", 0.5, None, 24),
        ("wikitext", "word_perplexity", 12.0, None, 0),
    ]
    assert [score.higher_is_better for score in scores] == [True, True, False]


def test_results_are_metrics_with_a_direction() -> None:
    accuracy, perplexity = "lm-eval/gsm8k/exact_match", "lm-eval/wikitext/word_perplexity"
    assert (spec(accuracy).direction, spec(perplexity).direction) == ("up", "down")
    assert spec(stderr_of(accuracy)).direction == "none"
    assert [is_stderr(key) for key in (accuracy, stderr_of(accuracy))] == [False, True]
    assert stderr_of(stderr_of(accuracy)) == stderr_of("eval/accuracy") == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_lm_eval
def test_a_trained_run_and_its_base_model_are_measured_as_mlx_lm_measures_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The oracle is mlx-lm's own class on the exported model, and on the starter's folder."""
    import lm_eval
    from lm_eval.tasks import TaskManager
    from mlx_lm.evaluate import MLXLM

    from grpo_engine.policy.embedded import EMBEDDED

    tasks, db = tmp_path / "tasks", tmp_path / "store.db"
    tasks.mkdir()
    rng = random.Random(0)
    pairs = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(16)]
    rows = [{"question": f"{a} + {b} = ?", "answer": str(a + b)} for a, b in pairs]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tasks / "sums.yaml").write_text(TASK % data)
    (tasks / "scores.py").write_text(FUNCTION)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    sets = ["rollout.prompts=4", "evaluation.before_and_after=false", "evaluation.pinned=0"]
    settings = [word for setting in sets for word in ("--set", setting)]
    words = ["train", "--db", str(db), "--preset", "starter", "--steps", "4", "--name", "r"]
    assert main([*words, *settings]) == 0
    capsys.readouterr()
    words = ["eval", "r", "--db", str(db), "--lm-eval", "local_sums", "--lm-eval-tasks", str(tasks)]
    assert main(words) == 0
    out = capsys.readouterr()
    assert f"{tasks / 'sums.yaml'} names functions" in out.err
    with StoreReader(db) as reader:
        (event,) = reader.benchmarks(reader.resolve("r").key)
    assert out.out.splitlines()[1].split()[:3] == ["local_sums", "right", "16"]
    exported = tmp_path / "exported"
    assert (
        main(["models", "export", "r", "--db", str(db), "--to", "mlx", "--out", str(exported)]) == 0
    )
    for score, folder in zip(event.scores, (EMBEDDED["starter"], exported), strict=True):
        expected = lm_eval.simple_evaluate(
            model=MLXLM(str(folder)),
            tasks=["local_sums"],
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            apply_chat_template=True,
        )["results"]["local_sums"]
        assert score.value == expected["right,none"]
        assert score.stderr == pytest.approx(expected["right_stderr,none"])
    assert event.scores[0].moment == "before"
