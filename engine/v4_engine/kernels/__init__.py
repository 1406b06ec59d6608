"""Reference and device kernels behind one interface."""
