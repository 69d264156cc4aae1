"""The scheduler worker service: decides alone, on its own view of the nodes."""

from hoss import speak_tls_1_3_alone

speak_tls_1_3_alone()
