"""The binding webhook: its server and who may ask it, its judgement of bindings, and what it allowed."""
