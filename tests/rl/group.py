"""What the numerics tests of `nereus.rl` run on: one rank alone, or four real processes over Gloo, on the same weights.

    Alone: unit store + channels of one     Group: process per endpoint, each a NativeEndpoint over a shared TCPStore

`llama` is the model once more, whole, from the public HF definition; nothing of it comes from the code under test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any
from zlib import crc32

import torch
from torch.distributed import TCPStore

from nereus.emu.groups import rank_groups
from nereus.emu.unit import Emu, counter_tensors
from nereus.layout.box import Box
from nereus.layout.catalog import EndpointId, StateSpec, UnitId
from nereus.layout.dense import state_spec
from nereus.layout.layout import Layout
from nereus.layout.tensors import CanonicalTensor, Kind
from nereus.rl.assemble import Piece
from nereus.rl.channels import Channels
from nereus.rl.endpoint import NativeEndpoint
from nereus.rl.model import Decoder
from nereus.rl.pacing import Pacer
from nereus.rl.programs import Request
from nereus.rl.rollouts import Rollout
from nereus.rl.train import Accumulate
from nereus.rl.view import UnitView
from nereus.spec.job import Grpo
from nereus.spec.model import ModelShape
from nereus.spec.stages import ACTOR_TRAINING
from nereus.transition.collectives import COMPUTE, GroupKey
from nereus.transition.ops import Program
from nereus.transport.communicators import Communicators
from nereus.transport.memory import DeviceMemory
from nereus.transport.store import UnitStore

CPU = torch.device("cpu")
ROOM_BYTES = 1 << 30
ANSWER_S = 60.0
"""Far above what any command takes."""

Parameters = Mapping[str, torch.Tensor]


def make_shape(
    *, tied: bool = False, num_layers: int = 3, num_heads: int = 4, num_kv_heads: int = 2, **changes: Any
) -> ModelShape:
    """A decoder of some thousand parameters in which no two extents are equal by chance."""
    sizes = {"hidden_size": 18, "head_dim": 6, "ffn_size": 22, "vocab_size": 29, "rope_theta": 100.0, "norm_eps": 1e-4}
    return ModelShape(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        tie_embeddings=tied,
        **{**sizes, **changes},
    )


class StrongWeights:
    """A weight source whose layers do something: values of order one, norms that are not one."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def whole(self, tensor: CanonicalTensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(crc32(f"{self._seed}/{tensor.name}".encode()))
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        scaled = 1 + 0.3 * values if len(tensor.shape) == 1 else values * 1.5 / tensor.shape[-1] ** 0.5
        return scaled.to(getattr(torch, tensor.dtype))

    def read(self, tensor: CanonicalTensor, box: Box) -> torch.Tensor:
        return self.whole(tensor)[box.slices((0,) * len(tensor.shape))].contiguous()


def make_state(shape: ModelShape, dtype: str = "float64") -> StateSpec:
    return state_spec(shape, dtype, counter_tensors(), optimizer=True)


def whole_parameters(shape: ModelShape, *, seed: int = 0, dtype: str = "float64") -> dict[str, torch.Tensor]:
    """The parameters that `StrongWeights` gives, whole."""
    tensors = make_state(shape, dtype).tensors
    return {t.name: StrongWeights(seed).whole(t) for t in tensors if t.kind is Kind.PARAMETER}


def make_units(layout: Layout, dp: int, endpoints: Sequence[EndpointId], epoch: int = 0) -> tuple[Emu, ...]:
    """The replicas of a training stage on the first endpoints."""
    size = layout.size
    return tuple(
        Emu(UnitId(ACTOR_TRAINING, i, epoch), layout, tuple(endpoints[i * size : (i + 1) * size])) for i in range(dp)
    )


class Alone:
    """One unit on one rank, with the parts of an endpoint laid open."""

    def __init__(
        self, shape: ModelShape, *, dtype: str = "float64", capacity: int = ROOM_BYTES, seed: int = 0, device: str = "d0"
    ) -> None:
        torch.set_num_threads(1)
        self.shape, self.state = shape, make_state(shape, dtype)
        self.memory = DeviceMemory(device, capacity)
        self.store = UnitStore(CPU, self.memory)
        (self.emu,) = make_units(Layout(), 1, ("d0.0",))
        shards = self.state.shards(Layout(), 0)
        self.store.open(self.emu.unit, shards)
        for tensor, boxes in shards.items():
            for box in boxes:
                target = self.store.write(self.emu.unit, tensor.ref, box)
                target.copy_(StrongWeights(seed).read(tensor, box)) if tensor.kind is Kind.PARAMETER else target.zero_()
                self.store.land(self.emu.unit, tensor.ref, box)
        self.state_bytes = self.memory.used_bytes
        self.view = UnitView(
            emu=self.emu,
            rank=0,
            shape=shape,
            store=self.store,
            channels=Channels.alone(rank_groups((self.emu,), 0, 0, shape.num_kv_heads), Pacer(None)),
            memory=self.memory,
            pacer=Pacer(None),
            torch_device=CPU,
        )

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        return self.view.parameters

    def decoder(self) -> Decoder:
        return self.view.decoder()


def llama(shape: ModelShape, parameters: Parameters, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, vocab] of token ids [B, T]: LlamaForCausalLM of HF transformers, eager attention, no cache."""
    batch, length = tokens.shape
    dim, repeats = shape.head_dim, shape.num_heads // shape.num_kv_heads
    inverse = 1.0 / (shape.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    angles = torch.arange(length, dtype=torch.float64)[:, None] * inverse[None, :]
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1) for f in (torch.cos, torch.sin))
    future = torch.full((length, length), float("-inf"), dtype=torch.float64).triu(1)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return parameters[name] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + shape.norm_eps))

    def rotate_half(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), dim=-1)

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.matmul(x, parameters[name].t()).view(batch, length, -1, dim).transpose(1, 2)

    x = parameters["model.embed_tokens.weight"][tokens]
    for layer in range(shape.num_layers):
        at = f"model.layers.{layer}"
        h = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (heads(h, f"{at}.self_attn.{p}_proj.weight") for p in "qkv")
        q, k = (y * cos + rotate_half(y) * sin for y in (q, k))
        k, v = (y[:, :, None].expand(-1, -1, repeats, -1, -1).reshape(batch, -1, length, dim) for y in (k, v))
        weights = torch.softmax(q @ k.transpose(2, 3) * dim**-0.5 + future, dim=-1)
        attended = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + attended @ parameters[f"{at}.self_attn.o_proj.weight"].t()
        h = norm(x, f"{at}.post_attention_layernorm.weight")
        gate, up = (h @ parameters[f"{at}.mlp.{p}_proj.weight"].t() for p in ("gate", "up"))
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ parameters[f"{at}.mlp.down_proj.weight"].t()
    head = "model.embed_tokens.weight" if shape.tie_embeddings else "lm_head.weight"
    return norm(x, "model.norm.weight") @ parameters[head].t()


def make_rollout(shape: ModelShape, lengths: Sequence[tuple[int, int]], *, seed: int = 0, dtype: str = "float64") -> Rollout:
    """Random rows of (prompt, response) tokens, with old log-probabilities near those of the uniform policy."""
    generator = torch.Generator().manual_seed(seed)
    rows, longest = len(lengths), max(prompt + response for prompt, response in lengths)
    tokens = torch.randint(shape.vocab_size, (rows, longest), generator=generator)
    prompts, responses = (torch.tensor(column) for column in zip(*lengths, strict=True))
    at = torch.arange(longest)
    inside = (at >= prompts[:, None]) & (at < (prompts + responses)[:, None])
    old = -2.0 - torch.rand(rows, longest, generator=generator, dtype=torch.float64)
    return Rollout(
        sample_ids=torch.arange(rows) + 100,
        prompt_index=torch.zeros(rows, dtype=torch.int64),
        tokens=torch.where(at < (prompts + responses)[:, None], tokens, 0),
        prompt_length=prompts,
        response_length=responses,
        old_logprobs=torch.where(inside, old, 0.0).to(getattr(torch, dtype)),
        rewards=torch.rand(rows, generator=generator, dtype=torch.float64),
    )


def make_accumulate(
    rollout: Rollout, *, micro_batch: int = 2, temperature: float = 0.8, num_tokens: int | None = None, seed: int = 1
) -> Accumulate:
    """A request with random advantages and reference log-probabilities, strong clipping and a strong KL term."""
    generator = torch.Generator().manual_seed(seed)
    dtype = rollout.old_logprobs.dtype
    rows, longest = rollout.tokens.shape
    return Accumulate(
        rollout=rollout,
        advantages=torch.randn(rows, generator=generator, dtype=torch.float64).to(dtype),
        ref_log_probs=(rollout.old_logprobs - torch.rand(rows, longest, generator=generator, dtype=torch.float64)).to(dtype),
        num_tokens=rollout.num_response_tokens if num_tokens is None else num_tokens,
        micro_batch=micro_batch,
        grpo=Grpo(clip_ratio=0.3, kl_coef=0.05),
        temperature=temperature,
    )


def communicators_of(emus: tuple[Emu, ...], shape: ModelShape) -> frozenset[GroupKey]:
    """What computing on these replicas of one model-stage needs."""
    ranks = [(index, rank) for index, emu in enumerate(emus) for rank in range(emu.layout.size)]
    groups = {members for index, rank in ranks for members in rank_groups(emus, index, rank, shape.num_kv_heads).all()}
    return frozenset(GroupKey.of(members, COMPUTE) for members in groups)


class _Worker:
    """What runs in each process of a group; every public method is a command."""

    def __init__(self, endpoint: EndpointId, port: int) -> None:
        self._name = endpoint
        self._store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
        self._endpoint: NativeEndpoint | None = None
        self._memory = DeviceMemory(endpoint, ROOM_BYTES)

    def open(self, shape: ModelShape, emus: tuple[Emu, ...], epoch: int) -> int:
        """Serve fresh units of a model; returns the bytes in use."""
        self._memory = DeviceMemory(self._name, ROOM_BYTES)
        pool = Communicators(self._store, self._name, CPU, timeout_s=20.0)
        state = make_state(shape)
        endpoint = self._endpoint = NativeEndpoint(
            endpoint=self._name,
            device=CPU,
            memory=self._memory,
            speed=None,
            shape=shape,
            communicators=pool,
            weights=StrongWeights(),
        )
        keep = communicators_of(emus, shape)
        mine = tuple(sorted(key for key in keep if self._name in key.members))
        endpoint.install(Program(epoch, self._name, mine, ()))
        endpoint.seed(emus, {ACTOR_TRAINING: state})
        endpoint.bind(epoch, emus, keep)
        return self._memory.used_bytes

    def compute(self, unit: UnitId, epoch: int, request: Request) -> Any:
        assert self._endpoint is not None
        return self._endpoint.compute(unit, epoch, request).result

    def read(self, unit: UnitId, kind: Kind) -> tuple[Piece, ...]:
        assert self._endpoint is not None
        return self._endpoint.read(unit, kind)

    def gradients(self, unit: UnitId) -> tuple[Piece, ...]:
        """What `accumulate` left, cut like the parameters."""
        assert self._endpoint is not None
        by_name = self._endpoint._transients.gradients[unit].by_name
        return tuple(Piece(ref, box, by_name[ref.name].clone()) for ref, box, _ in self.read(unit, Kind.PARAMETER))

    def used_bytes(self) -> int:
        return self._memory.used_bytes


class Group:
    """Four processes; `open` makes units on some of them, `compute` runs a request on all ranks of each."""

    def __init__(self, size: int = 4) -> None:
        self.endpoints = tuple(f"d{device}.0" for device in range(size))
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._epoch = 0
        self._pipes: dict[EndpointId, Connection] = {}
        self._processes = []
        self.emus: tuple[Emu, ...] = ()
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "tests.rl.group"])
        for endpoint in self.endpoints:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, endpoint, self._store.port), daemon=True)
            process.start()
            theirs.close()
            self._pipes[endpoint] = ours
            self._processes.append(process)

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.send(None)
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self._pipes.values():
            pipe.close()

    def open(self, shape: ModelShape, layout: Layout, dp: int) -> dict[EndpointId, int]:
        """Fresh units on the first endpoints; the bytes that each of these has in use."""
        self._epoch += 1
        self.emus = make_units(layout, dp, self.endpoints, self._epoch)
        used = [e for emu in self.emus for e in emu.endpoints]
        return self._each(dict.fromkeys(used, ("open", shape, self.emus, self._epoch)))

    def compute(self, requests: Sequence[Request]) -> list[dict[EndpointId, Any]]:
        """One request for each replica; what each of its ranks answers."""
        pairs = list(zip(self.emus, requests, strict=True))
        commands = {e: ("compute", emu.unit, self._epoch, request) for emu, request in pairs for e in emu.endpoints}
        found = self._each(commands)
        return [{endpoint: found[endpoint] for endpoint in emu.endpoints} for emu in self.emus]

    def pieces(self, index: int, method: str, *args: Any) -> list[Piece]:
        """What all ranks of one replica hold."""
        emu = self.emus[index]
        found = self._each(dict.fromkeys(emu.endpoints, (method, emu.unit, *args)))
        return [piece for endpoint in emu.endpoints for piece in found[endpoint]]

    def used_bytes(self) -> dict[EndpointId, int]:
        return self._each({e: ("used_bytes",) for emu in self.emus for e in emu.endpoints})

    def _each(self, commands: Mapping[EndpointId, tuple[Any, ...]]) -> dict[EndpointId, Any]:
        for endpoint, command in commands.items():
            self._pipes[endpoint].send(command)
        answers = {}
        for endpoint in commands:
            assert self._pipes[endpoint].poll(ANSWER_S), f"{endpoint} did not answer within {ANSWER_S} s"
            answers[endpoint] = self._pipes[endpoint].recv()
        for fine, result in answers.values():
            if not fine:
                raise result
        return {endpoint: result for endpoint, (_, result) in answers.items()}


def replicas_agree(pieces: Iterable[Piece]) -> bool:
    """Whether all that hold the same box hold the same values, but for rounding."""
    first: dict[Any, torch.Tensor] = {}
    return all(torch.allclose(first.setdefault((p.ref, p.box), p.values), p.values, rtol=1e-12, atol=1e-14) for p in pieces)


def _serve(pipe: Connection, endpoint: EndpointId, port: int) -> None:
    torch.set_num_threads(1)
    worker = _Worker(endpoint, port)
    while (command := pipe.recv()) is not None:
        method, *args = command
        try:
            pipe.send((True, getattr(worker, method)(*args)))
        except Exception as error:
            pipe.send((False, error))
