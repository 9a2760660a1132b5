"""What the frameworks cannot run, each rule once: Megatron-LM's and DeepSpeed's layouts, engines, and pools of all roles.

    ALL_DEVICES, unpiped, megatron, sharded_heads -> Rules of a framework -> the planner searches under them

Batches are no rule here: DP times micro-batch divides the batch in every option that there is, in every framework.
"""

from __future__ import annotations

from collections.abc import Iterator

from nereus.planner.accelerators import Pricer
from nereus.planner.options import Option
from nereus.planner.rules import Rule
from nereus.spec.outline import Outline
from nereus.spec.stages import ACTOR_GENERATION, ACTOR_TRAINING, REFERENCE_INFERENCE
from nereus.spec.workflow import CRITIC_TRAINING, REWARD_INFERENCE

TRAINERS = frozenset({ACTOR_TRAINING, CRITIC_TRAINING})
"""Holders whose model is trained."""

SCORERS = frozenset({REFERENCE_INFERENCE, REWARD_INFERENCE})
"""Holders whose model only scores."""

GENERATES = frozenset({ACTOR_GENERATION})
"""Holders that run on rollout engines everywhere."""


def _fills(option: Option, pricer: Pricer) -> bool:
    return option.num_devices == pricer.outline.num_devices


def _has_no_pipeline(option: Option, pricer: Pricer) -> bool:
    return option.run.pp == 1


def _cuts_no_head(option: Option, pricer: Pricer) -> bool:
    decoder, tp = pricer.architecture(option.holder).decoder, option.run.tp
    return decoder.num_heads % tp == 0 and decoder.num_kv_heads % tp == 0


def _has_equal_stages(option: Option, pricer: Pricer) -> bool:
    return pricer.architecture(option.holder).decoder.num_layers % option.run.pp == 0


def _cuts_vocabulary(option: Option, pricer: Pricer) -> bool:
    return pricer.architecture(option.holder).decoder.vocab_size % option.run.tp == 0


ALL_DEVICES = Rule("every role takes all devices of the pool", _fills)
"""All three place their roles on one pool and derive DP from what TP and PP leave of it."""


def unpiped(sentence: str, holders: frozenset[str] | None = None) -> Rule:
    """These holders (None: all) have no pipeline, for the reason in `sentence`."""
    return Rule(sentence, _has_no_pipeline, holders)


def sharded_heads(sentence: str, holders: frozenset[str]) -> Rule:
    """TP divides query heads and key-value heads: the latter are not repeated, as rollout engines do."""
    return Rule(sentence, _cuts_no_head, holders)


def megatron(holders: frozenset[str]) -> Iterator[Rule]:
    """What Megatron-LM's core checks when a model is built (transformer_config.py, tensor_parallel/layers.py).

    It would pad a vocabulary, but models that are imported from Hugging Face keep theirs in Megatron-Bridge and mbridge.
    """
    yield sharded_heads("in Megatron TP divides query heads and key-value heads", holders)
    yield Rule("in Megatron PP divides the layers", _has_equal_stages, holders)
    yield Rule("in Megatron TP divides the vocabulary, which is not padded", _cuts_vocabulary, holders)


def forbids_pool(outline: Outline, framework: str) -> str:
    """Why all roles of an outline cannot share one pool, whatever the plan; empty where they can."""
    if outline.asynchronous:
        return f"{framework}'s asynchronous trainer has pools of its own for rollout and training, which are not written yet"
    sizes = {(group.kind, group.memory_bytes, group.devices) for group in outline.nodes}
    if len(sizes) > 1:
        return f"{framework} takes a number of equal nodes; give nodes of one kind and size"
    return ""
