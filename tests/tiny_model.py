"""A tiny random Llama as a Hugging Face folder: real files, milliseconds to run."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 512
HIDDEN_SIZE = 32
NUM_LAYERS = 2


def save_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write two layers of 32 units over 512 tokens, float32, no tokenizer; return the folder."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder
