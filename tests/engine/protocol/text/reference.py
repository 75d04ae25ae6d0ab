"""What transformers makes of the same GGUF file; it knows no `smollm` rule for numbers."""

from functools import cache


@cache
def transformers_tokenizer(path):
    from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

    architecture, description, _ = mapping.get_gguf_tokenizer(str(path))
    return mapping.convert_gguf_tokenizer(architecture, description)[0]
