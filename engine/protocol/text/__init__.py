"""Text in and out of a model: files, tokenizer, chat template, detokenizer. Torch-free."""
