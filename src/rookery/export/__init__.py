"""Export of a trained policy to one file.

Modules: `export_policy` (writes and checks the file), `bundle` (safetensors with settings and
spaces), `onnx` (ONNX graph).
"""
