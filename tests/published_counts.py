"""Parameters of published models: the sums over the safetensors that Hugging Face shows on the model card, unless a source
stands beside them."""

from __future__ import annotations

TOTAL = {
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V3": 671e9,  # README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: the main model, without its MTP module
    "Llama-2-7b": 6_738_415_616,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,  # 109B, with a vision tower that this config does not describe
    "Meta-Llama-3.1-8B": 8_030_261_248,
    "Meta-Llama-3.1-70B": 70_553_706_496,
    "Meta-Llama-3.1-405B": 405_853_388_800,
    "Mistral-7B-v0.3": 7_248_023_552,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "OLMo-2-7B": 7_298_617_344,
    "Qwen2-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-32B": 32_763_876_352,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-32B-FP8": 32_762_123_264,  # that of the checkpoint before it was quantised
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Qwen3-VL-8B-Instruct": 8_767_123_696,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
    "TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "chatglm": 6_243_584_000,  # ChatGLM3-6B, as torchinfo and PEFT count it
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b-it": 999_885_952,
    "gpt-oss-20b": 20.91e9,  # gpt-oss model card, arXiv 2508.10925, table 1
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "llava-1.5-7b": 7_063_427_072,
    "phi-2": 2_779_683_840,
}
