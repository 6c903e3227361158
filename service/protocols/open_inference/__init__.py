"""The Open Inference Protocol, which KServe and Triton speak, over both transports."""
