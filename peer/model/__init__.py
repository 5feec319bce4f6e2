"""What is trained: description, families, build, flat parameters, replicas."""
