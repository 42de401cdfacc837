"""Replay buffers: ring buffers of env steps in shared memory, and batches sampled from them.

A row is one stored env step, or the final observation of an episode. `ring` is the file format (one
writer, any number of readers), on top of `shared_arrays` (files that several processes map),
`shared_memory` (atomic counters) and `file_owner`. `buffer` is the replay buffer: it takes rows
from the actors, samples batches, and updates priorities. `sampler` chooses rows (uniform or
prioritized). `fold` builds n-step transitions, frame stacks and sequences. `replay` has the
interfaces, also of other runs' replay buffers to sample from. Others: `hindsight` (HER), `limiter`
(samples per insert), `rollouts` (on-policy), `shards` (one buffer as several rings), `saved_rows`
(replay in checkpoints), `batches` (selects and joins rows of batches), `device_replay` (on a GPU).
"""
