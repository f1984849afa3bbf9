"""What a user brings - a module, exported program, ONNX file or configuration - brought into Relax."""
