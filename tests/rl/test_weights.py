"""First values: the same for any cut, of the scale that each tensor needs, read by slices from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nereus.errors import TensorRuleError, UserError
from nereus.layout.box import Box
from nereus.layout.dense import EMBED, HEAD, NORM, dense_parameters, layer_name
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind, Place
from nereus.rl.weights import RandomWeights, SafetensorsWeights, element_indices
from nereus.spec.model import ModelShape


def make_shape(*, tied: bool = False) -> ModelShape:
    return ModelShape(
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=96,
        vocab_size=64,
        tie_embeddings=tied,
    )


def find(name: str, dtype: str = "float64", *, tied: bool = False) -> CanonicalTensor:
    return next(tensor for tensor in dense_parameters(make_shape(tied=tied), dtype) if tensor.name == name)


def read_whole(name: str, *, tied: bool = False, seed: int = 0) -> torch.Tensor:
    tensor = find(name, tied=tied)
    return RandomWeights(seed, make_shape(tied=tied)).read(tensor, Box.whole(tensor.shape))


def test_element_indices_are_row_major() -> None:
    whole = torch.arange(4 * 5 * 6).reshape(4, 5, 6)
    assert torch.equal(element_indices((4, 5, 6), Box((1, 0, 2), (3, 5, 4))), whole[1:3, :, 2:4])


@pytest.mark.parametrize(("layout", "dtype"), [(Layout(4, 1), "float32"), (Layout(2, 4), "float64")], ids=str)
def test_random_weights_of_any_layout_are_parts_of_the_whole(layout: Layout, dtype: str) -> None:
    shape = make_shape()
    source = RandomWeights(3, shape)
    for tensor in dense_parameters(shape, dtype):
        whole = source.read(tensor, Box.whole(tensor.shape))
        assert whole.dtype == getattr(torch, dtype)
        for rank in range(layout.tp * layout.pp):
            for box in tensor.boxes(layout, rank, shape.num_layers):
                part = source.read(tensor, box)
                assert part.is_contiguous()
                assert torch.equal(part, whole[box.slices((0,) * len(tensor.shape))])


@pytest.mark.parametrize(
    ("name", "std"),
    [
        (EMBED, 0.5),
        (HEAD, 0.02),
        (layer_name(1, "self_attn.q_proj"), 0.02),
        (layer_name(1, "mlp.up_proj"), 0.02),
        (layer_name(1, "self_attn.o_proj"), 0.02 / 8**0.5),
        (layer_name(3, "mlp.down_proj"), 0.02 / 8**0.5),
    ],
)
def test_random_weights_have_the_scale_of_their_role(name: str, std: float) -> None:
    values = read_whole(name)
    assert values.mean().item() == pytest.approx(0.0, abs=0.08 * std)
    assert values.std().item() == pytest.approx(std, rel=0.06)


def test_a_tied_embedding_has_the_scale_of_a_head() -> None:
    assert read_whole(EMBED, tied=True).std().item() == pytest.approx(0.02, rel=0.06)


def test_norms_start_at_one() -> None:
    for name in (NORM, layer_name(0, "input_layernorm"), layer_name(3, "post_attention_layernorm")):
        assert torch.equal(read_whole(name), torch.ones(64, dtype=torch.float64))


def test_random_weights_differ_by_seed_and_layer() -> None:
    first = read_whole(layer_name(0, "mlp.up_proj"))
    assert not torch.allclose(first, read_whole(layer_name(1, "mlp.up_proj")))
    assert not torch.allclose(first, read_whole(layer_name(0, "mlp.up_proj"), seed=1))


def test_a_moment_and_an_unknown_parameter_are_refused_by_name() -> None:
    source = RandomWeights(0, make_shape())
    moment = find(EMBED).as_kind(Kind.EXP_AVG, "float32")
    with pytest.raises(TensorRuleError, match=r"embed_tokens.*exp_avg.*parameters only"):
        source.read(moment, Box.whole(moment.shape))
    router = CanonicalTensor("model.layers.0.router", Kind.PARAMETER, (4, 8), "float32", Place.LAYER, 0)
    with pytest.raises(TensorRuleError, match="router"):
        source.read(router, Box.whole(router.shape))


def save(path: Path) -> dict[str, torch.Tensor]:
    values = {tensor.name: torch.randn(tensor.shape) for tensor in dense_parameters(make_shape(), "float32")}
    save_file(values, path)
    return values


def test_safetensors_weights_read_the_box_and_convert_it(tmp_path: Path) -> None:
    values = save(tmp_path / "w.safetensors")
    source = SafetensorsWeights(tmp_path / "w.safetensors")
    for name, box in ((layer_name(2, "mlp.down_proj"), Box((0, 24), (64, 48))), (NORM, Box((3,), (9,)))):
        part = source.read(find(name), box)
        assert part.dtype == torch.float64
        assert part.is_contiguous()
        assert torch.equal(part, values[name][box.slices((0,) * len(box.low))].double())


def test_safetensors_weights_name_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save(path)
    tensor = find(EMBED)
    other = CanonicalTensor(EMBED, Kind.PARAMETER, (65, 64), "float32", Place.FIRST)
    absent = CanonicalTensor("model.extra.weight", Kind.PARAMETER, (4,), "float32", Place.FIRST)
    with pytest.raises(UserError, match=r"\(64, 64\).*\(65, 64\)"):
        SafetensorsWeights(path).read(other, Box.whole(other.shape))
    with pytest.raises(UserError, match=r"no tensor model\.extra\.weight"):
        SafetensorsWeights(path).read(absent, Box.whole(absent.shape))
    with pytest.raises(UserError, match="nowhere"):
        SafetensorsWeights(tmp_path / "nowhere").read(tensor, Box.whole(tensor.shape))
    (tmp_path / "broken").write_bytes(b"not a safetensors file")
    with pytest.raises(UserError, match="cannot read weights"):
        SafetensorsWeights(tmp_path / "broken").read(tensor, Box.whole(tensor.shape))
