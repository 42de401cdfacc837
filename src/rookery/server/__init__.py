"""The parameter server: what several learners send, added up, robustly, privately, over networks."""
