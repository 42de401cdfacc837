"""Replay buffers: ring buffers of env steps in shared memory, and batches sampled from them.

A row is one stored env step, or the final observation of an episode. `ring` is the file format (one
writer, any number of readers), on top of `shared_memory` and `file_owner`. `buffer` is the replay
buffer: it takes rows from the actors, samples batches, and updates priorities. `sampler` chooses
rows (uniform or prioritized). `fold` builds n-step transitions, frame stacks and sequences. Others:
`hindsight` (HER), `limiter` (samples per insert), `rollouts` (on-policy), `shards` (one buffer as
several rings), `build_replay`, `saved_rows` (replay in checkpoints), `batches` (selects and joins
rows of batches), `device_replay` (on a GPU), `peers` (samples from other runs' replay buffers).
"""
