"""The tests of `cluster` use one torch thread: their models are tiny, and the machine is shared."""

import torch

torch.set_num_threads(1)
