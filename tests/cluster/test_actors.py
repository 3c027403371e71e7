"""The pair on Ray: the same tokens as in one process, and clear errors where there is no room or an actor dies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from ray.exceptions import RayError

from cluster.actors import PairResources, PlacementError, RayPair, _PackedUpdate
from cluster.decoding import Effort, Sampling, StopRules
from cluster.messages import ContextUpdate, Request
from cluster.models.dflash import save_dflash
from cluster.models.loading import ModelSpec
from cluster.pair import LocalPair, PairSpec
from tests.cluster.tiny import TEXT_VOCAB, save_pair, tiny_drafter, tiny_drafter_config

HALF = PairResources(draft_cpus=0.5, verify_cpus=0.5)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> PairSpec:
    verifier, drafter = save_pair(tmp_path_factory.mktemp("pair"))
    return PairSpec(ModelSpec(str(verifier), dtype="float32"), ModelSpec(str(drafter), dtype="float32"), max_rows=3)


@pytest.fixture(scope="module")
def pair(ray_cluster: None, spec: PairSpec) -> Iterator[RayPair]:  # noqa: ARG001 (Ray must run)
    running = RayPair(spec, HALF)
    yield running
    running.close()


def batch() -> list[Request]:
    efforts = (Effort(6, 2), None, Effort(4, 4, "left_to_right"), Effort(6), Effort(3, 3, "threshold", 0.2))
    return [
        Request(f"r{i}", tuple(range(60, 65 + 3 * i)), StopRules(5 + 4 * i), Sampling(0.7 * (i % 2), seed=i), effort)
        for i, effort in enumerate(efforts)
    ]


class TestPacking:
    """Features cross between processes as bytes, because numpy has no bfloat16."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_round_trip(self, dtype: torch.dtype) -> None:
        update = ContextUpdate(2, (5, 9), torch.randn(2, 3, 4).to(dtype))
        again = _PackedUpdate.pack(update).unpack()
        assert (again.first_row, again.first_positions) == (2, (5, 9))
        assert again.features.dtype == dtype
        assert torch.equal(again.features, update.features)

    def test_takes_a_slice(self) -> None:
        update = ContextUpdate(0, (0,), torch.randn(3, 4, 5)[1:2, ::2])
        assert torch.equal(_PackedUpdate.pack(update).unpack().features, update.features)


class TestBundles:
    def test_name_only_what_is_asked(self) -> None:
        assert HALF.bundles() == [{"CPU": 0.5}, {"CPU": 0.5}]
        assert PairResources(1, 2, 1, 1).bundles() == [{"CPU": 1, "GPU": 1}, {"CPU": 2, "GPU": 1}]


class TestRayPair:
    def test_gives_the_tokens_of_the_local_pair(self, pair: RayPair, spec: PairSpec) -> None:
        ours, local = pair.generate(batch()), LocalPair(spec).generate(batch())
        assert [(c.request_id, c.token_ids) for c in ours] == [(c.request_id, c.token_ids) for c in local]
        assert [c.stats.accepted_per_round for c in ours] == [c.stats.accepted_per_round for c in local]

    def test_accounts_for_its_time(self, pair: RayPair) -> None:
        before = pair.times().rounds
        pair.generate(batch())
        assert pair.times().rounds > before

    def test_a_refused_request_leaves_the_pair_usable(self, pair: RayPair) -> None:
        with pytest.raises(RayError, match="Expected a prompt of at least one token, got an empty one"):
            pair.generate([Request("empty", (), StopRules(3))])
        assert len(pair.generate(batch())) == len(batch())


@pytest.mark.usefixtures("ray_cluster")
class TestRefusals:
    @pytest.mark.parametrize(
        ("resources", "asked"),
        [
            (PairResources(draft_cpus=64.0), r"a drafter with \{'CPU': 64\.0\} and a verifier with \{'CPU': 1\.0\}"),
            (PairResources(verify_gpus=1.0), r"a verifier with \{'CPU': 1\.0, 'GPU': 1\.0\}"),
        ],
    )
    def test_no_room_names_what_was_asked_and_what_there_is(
        self, spec: PairSpec, resources: PairResources, asked: str
    ) -> None:
        with pytest.raises(PlacementError, match=rf"{asked} within 0\.5 s, got a cluster of \{{.*'CPU': 4\.0.*\}}"):
            RayPair(spec, resources, wait_s=0.5)

    def test_a_drafter_for_another_verifier(self, spec: PairSpec, tmp_path: Path) -> None:
        config = tiny_drafter_config(vocab_size=TEXT_VOCAB, mask_token_id=257, num_target_layers=9)
        save_dflash(tiny_drafter(config), tmp_path, torch.float32)
        with pytest.raises(RayError, match="Expected a drafter made for this verifier"):
            RayPair(PairSpec(spec.verifier, ModelSpec(str(tmp_path), dtype="float32")), HALF)

    def test_a_dead_drafter_is_an_error_not_a_hang(self, spec: PairSpec) -> None:
        pair = RayPair(spec, HALF)
        try:
            ray.kill(pair._draft)
            with pytest.raises(RayError, match="actor died"):
                pair.generate(batch())
        finally:
            pair.close()
