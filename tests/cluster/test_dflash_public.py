"""Against the public `dflash` package (extra `bench`): its network on our weights, and its files in our loader."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from cluster.models.dflash import default_target_layers, load_dflash, save_dflash
from jobs.training.blocks import block_hidden
from tests.cluster.tiny import HIDDEN, tiny_drafter

pytest.importorskip("dflash")
from dflash.model import DFlashDraftModel, build_target_layer_ids


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_dflash(tiny_drafter(), tmp_path, torch.float32)
    return tmp_path


def public_model(directory: Path) -> Any:
    return DFlashDraftModel.from_pretrained(directory, dtype=torch.float32).eval()


class TestPublicPackage:
    def test_reads_our_configuration(self, directory: Path) -> None:
        model, ours = public_model(directory), tiny_drafter().config
        assert model.block_size == ours.block_size
        assert model.mask_token_id == ours.mask_token_id
        assert tuple(model.target_layer_ids) == ours.target_layer_ids

    def test_computes_the_same_hidden_states_from_our_checkpoint(self, directory: Path) -> None:
        features, embedded = torch.randn(9, 2 * HIDDEN), torch.randn(1, 7, HIDDEN)
        with torch.inference_mode():
            theirs = public_model(directory)(
                position_ids=torch.arange(16)[None], noise_embedding=embedded, target_hidden=features[None]
            )
            ours = block_hidden(tiny_drafter(), embedded, torch.tensor([9]), features)
        assert torch.allclose(ours, theirs, atol=1e-5)

    def test_computes_the_same_over_its_own_cache(self, directory: Path) -> None:
        """Two rounds, the block cropped in between, as `dflash_generate` runs it."""
        features = torch.randn(12, 2 * HIDDEN)
        first, second = torch.randn(1, 7, HIDDEN), torch.randn(1, 7, HIDDEN)
        model = public_model(directory)
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        with torch.inference_mode():
            model(
                position_ids=torch.arange(16)[None],
                noise_embedding=first,
                target_hidden=features[None, :9],
                past_key_values=cache,
                use_cache=True,
            )
            cache.crop(-7)
            theirs = model(
                position_ids=torch.arange(9, 19)[None],
                noise_embedding=second,
                target_hidden=features[None, 9:],
                past_key_values=cache,
                use_cache=True,
            )
            ours = block_hidden(tiny_drafter(), second, torch.tensor([12]), features)
        assert torch.allclose(ours, theirs, atol=1e-5)

    def test_its_checkpoint_loads_here(self, directory: Path, tmp_path: Path) -> None:
        public_model(directory).save_pretrained(tmp_path / "theirs")
        again = load_dflash(tmp_path / "theirs", torch.float32)
        assert again.config == tiny_drafter().config
        assert all(torch.equal(again.state_dict()[n], t) for n, t in tiny_drafter().state_dict().items())

    @pytest.mark.parametrize(("target_layers", "count"), [(36, 5), (30, 3), (28, 1), (24, 8)])
    def test_names_the_same_default_layers(self, target_layers: int, count: int) -> None:
        assert tuple(build_target_layer_ids(target_layers, count)) == default_target_layers(target_layers, count)
