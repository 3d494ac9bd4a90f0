"""What ``dgl.sparse`` asks its C++ library for, on torch tensors of any device: DGL has no build for current torch."""
