"""Neural networks (torch modules) and their helpers.

Modules: `encoders` (observations → features), `mlp`, `convolutions`, `recurrent`, `noisy`,
`implicit_quantiles`, `critics`, `target_network`. Fast inference for actors: `forward`.
Weights as arrays: `named_arrays`. Devices: `cuda_graph`, `device`.
"""
