"""Attention: matmul, a softmax that knows masks, matmul, and the projections around them."""
