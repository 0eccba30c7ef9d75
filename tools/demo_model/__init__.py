"""Training of the demo model: a small Qwen3-Next with an MTP head (see ../DEMO_MODEL.md).

Needs the project's ``train`` extra: torch, transformers, tokenizers, safetensors.
"""
