"""The training process and the peer's handle on it: steps, optimizer, adoption, device copies, memory."""
