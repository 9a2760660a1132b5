"""Generation through the KV cache equals the whole prefix computed again for every token, whoever shares a wave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from nereus.errors import OutOfDeviceMemory
from nereus.rl.generate import Generate, Generated, Sampling, generate
from nereus.rl.kv_cache import kv_cache_bytes
from nereus.rl.noise import gumbel
from nereus.spec.model import ModelShape
from tests.rl.group import Alone, llama, make_shape, whole_parameters

PROMPTS = ((3, 1, 4), (1, 5), (9, 2, 6, 5, 3, 5), (8,), (9, 7, 9, 3), (2, 3, 8, 4, 6, 2, 6, 4))
SAMPLES = (7, 1, 40, 12, 99, 100)


def make_request(
    *,
    rows: Sequence[int] = range(6),
    cap: int = 7,
    temperature: float = 1.0,
    eos: int | None = None,
    seed: int = 3,
    wave: int = 6,
) -> Generate:
    return Generate(
        sample_ids=torch.tensor([SAMPLES[row] for row in rows]),
        prompts=tuple(PROMPTS[row] for row in rows),
        sampling=Sampling(cap, temperature, eos, seed),
        wave=wave,
    )


def run(alone: Alone, request: Generate) -> Generated:
    found = generate(alone.view, request)
    assert found is not None
    return found


def recomputed(shape: ModelShape, request: Generate, row: int) -> tuple[list[int], list[float]]:
    """One row's tokens and log-probabilities, from the whole prefix each time."""
    parameters, sampling = whole_parameters(shape), request.sampling
    prefix = list(request.prompts[row])
    tokens, log_probs = [], []
    for position in range(sampling.cap):
        logits = llama(shape, parameters, torch.tensor([prefix]))[0, -1] / sampling.temperature
        noise = gumbel(sampling.seed, request.sample_ids[row : row + 1], position, range(shape.vocab_size))[0]
        token = int((logits + noise).argmax())
        tokens.append(token)
        log_probs.append(float(torch.log_softmax(logits, -1)[token]))
        prefix.append(token)
        if token == sampling.eos:
            break
    return tokens, log_probs


def check_rows(shape: ModelShape, request: Generate, found: Generated) -> None:
    for row in range(len(request.prompts)):
        tokens, log_probs = recomputed(shape, request, row)
        length = int(found.lengths[row])
        assert found.tokens[row, :length].tolist() == tokens
        assert found.log_probs[row, :length].tolist() == pytest.approx(log_probs, rel=1e-10, abs=1e-10)
        assert not found.tokens[row, length:].any()
        assert not found.log_probs[row, length:].any()


@pytest.mark.parametrize("wave", [1, 2, 4, 6, 50])
@pytest.mark.parametrize(
    "shape", [make_shape(), make_shape(tied=True, num_kv_heads=4), make_shape(num_kv_heads=1)], ids=["gqa", "mha", "mqa"]
)
def test_cache_gives_what_the_whole_prefix_gives_at_every_token(shape: ModelShape, wave: int) -> None:
    request = make_request(wave=wave)
    check_rows(shape, request, run(Alone(shape), request))


def test_responses_do_not_depend_on_the_wave() -> None:
    alone = Alone(make_shape())
    whole = run(alone, make_request(wave=6))
    for wave in (1, 2, 3, 4, 5):
        found = run(alone, make_request(wave=wave))
        assert torch.equal(found.tokens, whole.tokens)
        torch.testing.assert_close(found.log_probs, whole.log_probs, rtol=1e-10, atol=1e-12)


def test_responses_do_not_depend_on_which_rows_are_together_or_in_which_order() -> None:
    alone = Alone(make_shape())
    whole = run(alone, make_request())
    for rows in ((5, 4, 3, 2, 1, 0), (2,), (3, 0), (1, 5, 4)):
        found = run(alone, make_request(rows=rows, wave=2))
        assert torch.equal(found.tokens, whole.tokens[list(rows)])
        torch.testing.assert_close(found.log_probs, whole.log_probs[list(rows)], rtol=1e-10, atol=1e-12)


def test_rows_of_one_prompt_differ_by_their_sample() -> None:
    request = Generate(torch.arange(30), (PROMPTS[0],) * 30, Sampling(6, 1.0, None, 0), 30)
    found = run(Alone(make_shape()), request)
    assert len({tuple(row) for row in found.tokens.tolist()}) > 25


@pytest.mark.parametrize("wave", [1, 2, 6])
def test_end_token_ends_its_row_and_counts_as_part_of_it(wave: int) -> None:
    shape = make_shape()
    alone = Alone(shape)
    eos = int(run(alone, make_request()).tokens[2, 3])
    request = make_request(eos=eos, wave=wave)
    found = run(alone, request)
    check_rows(shape, request, found)
    assert found.lengths.tolist() == [len(recomputed(shape, request, row)[0]) for row in range(6)]
    ended = [row for row in range(6) if found.lengths[row] < 7]
    assert 2 in ended
    assert all(found.tokens[row, found.lengths[row] - 1] == eos for row in ended)
    assert found.tokens.shape[1] == found.lengths.max()


def test_decoding_stops_when_every_row_has_ended() -> None:
    alone = Alone(make_shape())
    first = int(run(alone, make_request(rows=[0], cap=1)).tokens[0, 0])
    found = run(alone, make_request(rows=[0], cap=50, eos=first))
    assert found.tokens.tolist() == [[first]]


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_temperature_divides_the_logits_of_both_the_choice_and_the_log_probabilities(temperature: float) -> None:
    shape = make_shape()
    request = make_request(temperature=temperature)
    check_rows(shape, request, run(Alone(shape), request))


def test_low_temperature_takes_the_likeliest_token() -> None:
    shape = make_shape()
    found = run(Alone(shape), make_request(temperature=1e-4, cap=1))
    for row, prompt in enumerate(PROMPTS):
        logits = llama(shape, whole_parameters(shape), torch.tensor([prompt]))[0, -1]
        assert int(found.tokens[row, 0]) == int(logits.argmax())
        assert float(found.log_probs[row, 0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_tokens_follow_the_softmax(temperature: float) -> None:
    shape = make_shape()
    draws = 6000
    request = Generate(torch.arange(draws), (PROMPTS[1],) * draws, Sampling(1, temperature, None, 11), 2000)
    counts = torch.bincount(run(Alone(shape), request).tokens[:, 0], minlength=shape.vocab_size).double()
    logits = llama(shape, whole_parameters(shape), torch.tensor([PROMPTS[1]]))[0, -1]
    expected = torch.softmax(logits / temperature, -1) * draws
    often = expected >= 5  # the usual bound for a chi-square test; the rest is one class
    observed = torch.cat([counts[often], counts[~often].sum()[None]])
    wanted = torch.cat([expected[often], expected[~often].sum()[None]]).clamp(min=1e-9)
    classes = int((wanted > 1).sum())
    chi_square = float(((observed - wanted) ** 2 / wanted)[wanted > 1].sum())
    assert classes > 8
    assert chi_square < classes + 4 * (2 * classes) ** 0.5


@pytest.mark.parametrize("wave", [2, 6])
def test_cache_of_one_wave_is_reserved_and_given_back(wave: int) -> None:
    shape = make_shape()
    alone = Alone(shape)
    alone.memory.reset_peak()
    run(alone, make_request(wave=wave))
    assert alone.memory.used_bytes == alone.state_bytes
    longest = kv_cache_bytes(shape, 3, 2, wave, 8 + 7, 8)
    assert alone.memory.peak_bytes == alone.state_bytes + longest
    assert longest == 2 * 3 * wave * 2 * 15 * 6 * 8


def test_wave_that_does_not_fit_is_refused_by_name_and_a_smaller_one_then_runs() -> None:
    shape = make_shape()
    state = Alone(shape).state_bytes
    alone = Alone(shape, capacity=state + kv_cache_bytes(shape, 3, 2, 3, 15, 8), device="d5")
    with pytest.raises(OutOfDeviceMemory, match="device d5: KV cache of 6 rows of 15 tokens needs"):
        run(alone, make_request(wave=6))
    assert alone.memory.used_bytes == state
    check_rows(shape, make_request(wave=3), run(alone, make_request(wave=3)))
