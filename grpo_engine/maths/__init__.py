"""The maths of the GRPO family: arrays in, arrays out; no config, no model, no tokenizer.

`advantages` turns rewards into advantages, `policy_loss` computes the loss. Both take a recipe,
which makes six choices. Each choice has its module:

    1 signal   signal.py, critic.py; entry point advantage.py
    2 ratio    ratio.py
    3 trust    trust.py
    4 anchor   anchor.py
    5 weight   weight.py
    6 reuse    reuse.py
    all        arrays.py, loss.py, metrics.py
"""
