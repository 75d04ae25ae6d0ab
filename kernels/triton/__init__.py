"""The device operations in Triton, for GPUs; under `TRITON_INTERPRET=1` they run on CPU tensors."""

import os

# What is the default today, said aloud: Triton warns that it will change when nothing is said.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
