"""What a user touches: the client that fetches, checks, adapts and plugs cost models into TVM."""
