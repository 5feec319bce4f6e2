import hashlib
import math

import pytest
import torch

from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.model.build import build_hollow_model, build_model, initial_parameters, loss, parameter_specs
from peer.model.description import describe

SPEC = ModelSpec(hidden_size=32, layers=2, heads=2, intermediate_size=48, vocabulary=64)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return build_model(SPEC, 16, seed=1)


def test_the_specs_are_the_models_own_tensors(model: torch.nn.Module):
    specs = parameter_specs(SPEC)
    assert {spec.name: spec.shape for spec in specs} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }
    assert [spec.name for spec in specs if spec.embedding] == ["model.embed_tokens.weight"]


def test_the_output_layer_is_the_embedding(model: torch.nn.Module):
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_model_starts_with_the_initial_parameters(model: torch.nn.Module):
    initial = initial_parameters(SPEC, seed=1)
    assert all(torch.equal(parameter, initial[name]) for name, parameter in model.named_parameters())


def test_initial_parameters_are_the_same_on_every_machine():
    values = initial_parameters(SPEC, seed=1)
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in values.values())).hexdigest()
    assert digest == "3127a63db64f79ad0db3ecbdf269fc9eae56a30d2d692f51d6f2a5900fa4312c"


def test_initial_parameters_have_the_stated_distribution():
    values = initial_parameters(SPEC, seed=1)
    for spec in parameter_specs(SPEC):
        tensor = values[spec.name]
        if len(spec.shape) == 1:
            assert torch.equal(tensor, torch.ones(spec.shape))
        else:
            bound = 1 / math.sqrt(SPEC.hidden_size)
            assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
            assert abs(tensor.mean().item()) < 5 * bound / math.sqrt(spec.elements)
            assert tensor.abs().max().item() <= bound
    flat = torch.cat([tensor.flatten() for tensor in values.values() if tensor.ndim > 1])
    assert flat.unique().numel() > 0.99 * flat.numel()


def test_bounds_follow_fan_in_and_depth():
    deep = SPEC.model_copy(update={"initial": "depth", "layers": 8})
    starts = initial_parameters(deep, seed=1)
    wanted = {"down_proj": 1 / math.sqrt(48 * 16), "o_proj": 1 / math.sqrt(32 * 16)}
    for name, values in starts.items():
        if values.ndim > 1:
            bound = wanted.get(name.split(".")[-2], 1 / math.sqrt(32))
            assert 0.95 * bound < values.abs().max().item() <= bound, name
    plain = initial_parameters(SPEC.model_copy(update={"layers": 8}), seed=1)
    same = [name for name in starts if torch.equal(starts[name], plain[name])]
    assert [name for name in starts if name not in same] == [
        f"model.layers.{layer}.{name}.weight" for layer in range(8) for name in ("self_attn.o_proj", "mlp.down_proj")
    ]


@pytest.mark.parametrize("layers", [2, 8, 24])
def test_the_residual_stream_is_as_long_at_any_depth(layers: int):
    """If bounds followed the width alone, it would grow with the layers, and so would the first gradients."""
    tokens = torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(0))
    spec = SPEC.model_copy(update={"initial": "depth", "layers": layers})
    ends = {}
    for name in ("depth", None):
        made = build_model(spec.model_copy(update={"initial": name}), 16, seed=1)
        begun: list[torch.Tensor] = [made.get_input_embeddings()(tokens[:, :-1])]
        made.model.norm.register_forward_hook(lambda _, given, __, kept=begun: kept.append(given[0]))
        made(input_ids=tokens[:, :-1])
        ends[name] = (begun[1].std() / begun[0].std()).item()
    assert 1 < ends["depth"] < 2.5
    assert ends["depth"] < ends[None]


def test_another_seed_draws_other_parameters():
    first, second = initial_parameters(SPEC, 1), initial_parameters(SPEC, 2)
    assert not any(torch.equal(first[spec.name], second[spec.name]) for spec in parameter_specs(SPEC) if spec.rows > 32)


def test_building_leaves_global_randomness_alone():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    build_model(SPEC, 16, seed=1)
    assert torch.equal(torch.rand(4), expected)


def test_the_untrained_loss_is_about_that_of_guessing(model: torch.nn.Module):
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(0))
    assert loss(model, tokens).item() == pytest.approx(math.log(64), abs=0.3)


def test_the_loss_is_that_of_transformers(model: torch.nn.Module):
    tokens = torch.randint(0, 64, (3, 17), generator=torch.Generator().manual_seed(0))
    theirs = model(input_ids=tokens, labels=tokens).loss
    assert loss(model, tokens).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_the_model_does_not_see_the_future(model: torch.nn.Module):
    tokens = torch.randint(0, 64, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 10:] = 0
    before, after = model(input_ids=tokens).logits, model(input_ids=changed).logits
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_a_hollow_model_is_the_same_once_it_has_parameters(family: str):
    spec = describe(RunConfig(model=SPEC.model_copy(update={"family": family}))).config.model
    whole, hollow = build_model(spec, 16, seed=1).eval(), build_hollow_model(spec, 16).eval()
    named = dict(hollow.named_parameters())
    assert list(named) == [name for name, _ in whole.named_parameters()], "tied ones are one"
    assert not any(parameter.numel() for parameter in named.values())
    for name, parameter in whole.named_parameters():
        named[name].data = parameter.data
    tokens = torch.arange(2 * 17).view(2, 17)
    with torch.inference_mode():
        assert torch.equal(loss(hollow, tokens), loss(whole, tokens))


def test_a_hollow_model_leaves_random_numbers_alone():
    state = torch.get_rng_state()
    build_hollow_model(SPEC, 16)
    assert torch.equal(torch.get_rng_state(), state)
