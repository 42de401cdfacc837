"""Data-parallel learners: several learners that split every batch and average their gradients.

`leader` (rank 0, the run's main learner), `follower` (the other ranks), `collectives` (operations
of torch.distributed), `serialization` (slices of batches as bytes).
"""
