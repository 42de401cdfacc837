"""Environments: how they are found, made, checked, vectorized and stepped.

Modules: `lookup` (from an id, class or function to a constructor), `make` (makes a vector of
environments), `spaces` (the form in which replay stores observations and actions), `nested` (dicts
and tuples of arrays), `vector` (stepping and autoreset), `async_vector` (environments in processes
of their own), `step_checks` and `env_fault` (errors in an environment's code), `env_calls` (the
call that runs now), `env_state` (saved environment states), `action_masks`, `goals` (rewards for
hindsight relabelling), `frame_stack`, `action_repeat`, `atari` (wrappers of games), `space_json`
(spaces as JSON), `turn_based/` (multi-player games), `toy/` (toy environments with a known
optimum).
"""
