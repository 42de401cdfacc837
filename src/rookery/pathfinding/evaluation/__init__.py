"""Evaluation of policies on sets of path-finding problem instances ("cases").

- `case_sets`: random problem instances and those from files; the methods that are compared.
- `play_cases`: plays problem instances in parallel and measures success, makespan and cost.
- `team_policy`: a trained policy for any number of agents.
"""
