"""All maths is tested on the CPU, so that a machine's GPU changes no number."""

import mlx.core as mx
from hypothesis import HealthCheck, settings

mx.set_default_device(mx.cpu)

settings.register_profile(
    "maths",
    deadline=None,
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("maths")
