"""Packed columns and the conversion between the model and hoss.v1 messages."""

# Of WorkerLink and Resolver as this release speaks them; Register.protocol in proto/hoss/v1/workerlink.proto
# lists what each version has.
PROTOCOL_VERSION = 2
