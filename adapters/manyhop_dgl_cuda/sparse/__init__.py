"""The C++ operators of ``dgl.sparse`` on torch tensors of any device: DGL has no build for current torch."""
