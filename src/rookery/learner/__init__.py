"""The learner: takes the gradient steps of a run. No other part of a run changes weights.

`learner` (losses, gradients, optimizer steps), `optimizer_backup` (undoes the optimizer steps of a
batch that is skipped), `weight_store` (shared memory with the weights for actors),
`captured_learner` (the gradient step as a CUDA graph), `gradients` (gradients are computed and
applied in separate calls), `data_parallel/` (several learners that split every batch).
"""
