"""The embedding server: OpenAI's and Text Embeddings Inference's requests, answered by an ONNX bundle or a bank.

``app`` is the ASGI application; ``run`` serves it with uvicorn.
"""
