"""Environments: how they are found, made, checked, vectorized and stepped.

`lookup` (from an id, class or function to a constructor), `make` (a vector of environments),
`spaces` (how observations and actions are stored), `vector` (stepping, autoreset), `step_checks`
and `env_fault` (errors of an environment), `env_state` (saved state), `action_masks`, `goals`,
`frame_stack`, `action_repeat`, `space_json`; `turn_based/` (games), `toy/` (environments
with a known optimum).
"""
