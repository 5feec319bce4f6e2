"""One running peer: how it is built, its lifecycle, its learner, status, reachability, limits while it runs."""
