"""The maths of the GRPO family: arrays in, arrays out; no config, no model, no tokenizer.

`advantages` turns rewards into advantages, `policy_loss` computes the loss. Both take a recipe,
which makes six choices. Each choice has its module:

    1 signal   signal.py (groups.py, process.py, critic.py), entry point advantage.py
    2 ratio    ratio.py
    3 trust    trust.py, target.py
    4 anchor   anchor.py
    5 weight   weight.py
    6 reuse    reuse.py
    around     around.py; parts of the loss: loss.py, terms.py, metrics.py
"""
