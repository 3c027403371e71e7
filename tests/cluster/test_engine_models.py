"""The engine over tiny transformers: plain decoding of the library, our plain decoding and every draft agree."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cluster.decoding import Effort, Leniency, Sampling, StopRules
from cluster.engine import Engine
from cluster.messages import Request
from cluster.models.drafter import BlockDrafter
from cluster.models.verifier import Verifier
from tests.cluster.tiny import FEATURE_LAYERS, VOCAB, Family, tiny_drafter, tiny_verifier

EFFORTS = (Effort(6), Effort(6, 2), Effort(5, 5, "left_to_right"), Effort(4, 4, "threshold", 0.3), None)
SAMPLINGS = (Sampling(), Sampling(0.7, seed=1), Sampling(1.3, top_k=9, seed=-2), Sampling(1.0, top_p=0.8, seed=2**60))


def engine(family: Family = "llama", max_rows: int = 3, draft: bool = True, model: Any = None) -> Engine:
    model = model or tiny_verifier(family)
    if not draft:
        return Engine(Verifier(model), None, max_rows)
    embedding = model.get_input_embeddings().weight.detach()
    drafter = BlockDrafter(tiny_drafter(), embedding, model.lm_head.weight.detach())
    return Engine(Verifier(model, FEATURE_LAYERS), drafter, max_rows)


def requests(count: int, margin: float = 0.0) -> list[Request]:
    """Prompts of 1 to 40 tokens, every effort with every sampling."""
    rng = torch.Generator().manual_seed(4)
    return [
        Request(
            f"r{i}",
            tuple(torch.randint(0, VOCAB, (1 + 13 * i % 40,), generator=rng).tolist()),
            StopRules(3 + 7 * i % 25),
            SAMPLINGS[i % len(SAMPLINGS)],
            EFFORTS[i % len(EFFORTS)],
            Leniency("margin", margin),
        )
        for i in range(count)
    ]


def alone(family: Family, one: Request) -> tuple[int, ...]:
    plain = Request(one.id, one.prompt, one.stop, one.sampling)
    (done,) = engine(family, max_rows=1, draft=False).generate([plain])
    return done.token_ids


@pytest.mark.parametrize("family", ["llama", "qwen3"])
class TestLossless:
    def test_plain_greedy_decoding_equals_the_librarys(self, family: Family) -> None:
        prompt = (3, 14, 15, 9, 26)
        with torch.inference_mode():
            model = tiny_verifier(family, attention="eager")
            expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert alone(family, Request("r", prompt, StopRules(20))) == tuple(expected[0, 5:].tolist())

    @pytest.mark.parametrize("max_rows", [1, 4])
    def test_drafted_text_equals_plain_text(
        self, family: Family, max_rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cluster.engine._PREFILL_CHUNK_TOKENS", 16)
        batch = requests(12)
        done = {c.request_id: c for c in engine(family, max_rows).generate(batch)}
        for one in batch:
            assert done[one.id].token_ids == alone(family, one)

    def test_lenient_text_does_not_depend_on_its_neighbours(self, family: Family) -> None:
        batch = requests(8, margin=2.0)
        done = {c.request_id: c for c in engine(family, 4).generate(batch)}
        for one in batch:
            (solo,) = engine(family, 1).generate([one])
            assert done[one.id].token_ids == solo.token_ids


class TestFailure:
    """A verifier whose embedding of one token is NaN."""

    POISON = VOCAB - 2

    def poisoned(self) -> Any:
        model = tiny_verifier()
        with torch.no_grad():
            model.get_input_embeddings().weight[self.POISON] = float("nan")
            model.lm_head.weight[self.POISON] = 0.0
        return model

    @pytest.mark.parametrize("draft", [False, True])
    def test_a_failed_row_leaves_nothing_to_the_next_one_in_its_place(self, draft: bool) -> None:
        """The short request takes the failed one's row while a long neighbour makes all of that row visible."""
        effort = Effort(4) if draft else None
        stop = StopRules(12, frozenset({self.POISON}))
        filler = tuple(range(1, 31))
        batch = [
            Request("long", filler, StopRules(30), effort=effort),
            Request("bad", (*filler[:20], self.POISON, 5), stop, effort=effort),
            Request("short", (7, 8), stop, effort=effort),
        ]
        shared = engine(max_rows=2, draft=draft, model=self.poisoned())
        done = {c.request_id: c for c in shared.generate(batch)}
        assert done["bad"].finish_reason == "error"
        for one in (batch[0], batch[2]):
            (solo,) = engine(max_rows=1, draft=False, model=self.poisoned()).generate(
                [Request(one.id, one.prompt, one.stop)]
            )
            assert done[one.id].error is None
            assert done[one.id].token_ids == solo.token_ids


class TestCancel:
    def test_between_two_rounds_the_last_row_moves_up(self) -> None:
        batch, shared = requests(4), engine(max_rows=4)
        for one in batch:
            shared.submit(one)
        done = {e.request_id: e.completion for e in shared.step() if e.completion}
        assert shared.cancel("r1")
        while not shared.idle:
            done |= {e.request_id: e.completion for e in shared.step() if e.completion}
        for one in (batch[0], batch[2], batch[3]):
            completion = done[one.id]
            assert completion is not None
            assert completion.token_ids == alone("llama", one)


class TestVerifierTensors:
    def test_features_and_logits_keep_the_models_dtype(self) -> None:
        model = tiny_verifier().to(torch.bfloat16)
        verifier = Verifier(model, FEATURE_LAYERS)
        ids: Tensor = torch.tensor([[1, 2, 3]])
        logits, features = verifier.forward(ids, torch.tensor([0]))
        assert logits.dtype == features.dtype == torch.bfloat16
