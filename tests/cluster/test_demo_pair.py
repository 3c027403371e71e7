"""The demo verifier itself: its greedy text is the library's."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from cluster.decoding import StopRules
from cluster.engine import Engine
from cluster.messages import Request
from cluster.models.demo import demo_verifier_dir
from cluster.models.loading import ModelSpec, load_causal_lm, load_tokenizer
from cluster.models.verifier import Verifier

NEW_TOKENS = 12


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_transformers_generate() -> None:
    spec = ModelSpec(dtype="float32")
    tokenizer = load_tokenizer(spec)
    prompts = [tuple(tokenizer(text)["input_ids"]) for text in ("The capital of France is", "def add(a, b):")]
    engine = Engine(Verifier(load_causal_lm(spec)), None, max_rows=2)
    ours = {
        c.request_id: c.token_ids
        for c in engine.generate(Request(str(i), p, StopRules(NEW_TOKENS)) for i, p in enumerate(prompts))
    }
    library = AutoModelForCausalLM.from_pretrained(demo_verifier_dir(), dtype=torch.float32).eval()
    for i, prompt in enumerate(prompts):
        out = library.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert ours[str(i)] == tuple(out[0, len(prompt) :].tolist())
