"""TRL trains a step on what was exported; NOT RUN without the environment of tests.tools.

`python -m tests.tools.trl_environment` makes it.
"""

import json
import subprocess
from pathlib import Path

import pytest

from grpo_engine.policy.embedded import EMBEDDED
from grpo_tui.app.cli.main import main
from tests.app.datasets.test_rows import PROBLEMS, answer, asked, group, store_of
from tests.tools.trl_environment import HOME

PYTHON = HOME / "bin" / "python"
# A tiny model of random weights with the starter's tokenizer, in a form that DPO can compare.
STEP = """
import copy, json, sys
from datasets import load_dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.data_utils import is_conversational

folder, demonstrations, pairs, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)
tokenizer.pad_token = tokenizer.eos_token
size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
every = dict(output_dir=out, max_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True)
result = {}
for name, file in (("sft", demonstrations), ("dpo", pairs)):
    data = load_dataset("json", data_files=file, split="train", cache_dir=out)
    result[name] = {"rows": len(data), "columns": data.column_names, "first": data[0]}
    result[name]["conversational"] = is_conversational(data[0])
    common = dict(train_dataset=data, processing_class=tokenizer)
    if name == "sft":
        trainer = SFTTrainer(model, args=SFTConfig(**every), **common)
    else:
        trainer = DPOTrainer(model, copy.deepcopy(model), args=DPOConfig(**every), **common)
    result[name]["loss"] = trainer.train().training_loss
    row = trainer.train_dataset[0]
    ids = row["input_ids"] if name == "sft" else row["prompt_ids"] + row["chosen_ids"]
    result[name]["read"] = tokenizer.decode(ids)
print(json.dumps(result))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="NOT RUN: there is no environment with TRL")
def test_trl_trains_on_demonstrations_and_on_pairs(tmp_path: Path) -> None:
    answers = [answer("right", 2.0), answer("wrong", 0.5)]
    store = store_of(tmp_path, *(group(problem, *answers) for problem in PROBLEMS[:4]))
    files = {form: tmp_path / f"{form}.jsonl" for form in ("sft", "preferences")}
    for form, file in files.items():
        words = ["export", "@last", "--db", str(store), "--format", form, "--out", str(file)]
        assert main(words) == 0
    script = tmp_path / "step.py"
    script.write_text(STEP)
    arguments = [EMBEDDED["starter"], *files.values(), tmp_path / "out"]
    done = subprocess.run(
        [PYTHON, script, *arguments], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    sft, dpo = result["sft"], result["dpo"]
    assert (sft["rows"], sft["columns"], sft["conversational"]) == (4, ["messages"], True)
    assert (dpo["rows"], dpo["conversational"]) == (4, True)
    assert dpo["first"]["margin"] == 1.5
    question = asked(PROBLEMS[0])["content"]
    read = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\nright<|im_end|>"
    assert sft["read"].strip() == dpo["read"].strip() == read
