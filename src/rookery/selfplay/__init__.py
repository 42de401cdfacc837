"""Self-play: past versions of a policy (weight snapshots) as opponents, and their ratings.

In order of reading: `opponents` (snapshots, win rates, choice of opponents), `matchmaking`
(probability of each opponent), `snapshot_files`, `opponent_seats` (opponents in an actor process),
`run_opponents` (builds a run's opponents); `match`, `rating` (Elo), `evaluation_rating` (during
training), `snapshot_players`, `snapshot_ladder` (tournament of snapshots), `ladder_chart`;
`human_play` (a person against a policy).
"""
