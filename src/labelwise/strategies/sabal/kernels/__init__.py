"""Inner kernels of SABAL: in PyTorch for any device, and in Triton."""
