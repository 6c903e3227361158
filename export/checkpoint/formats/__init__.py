"""Storage formats: TensorBundle, HDF5, Orbax and dumped tables."""
