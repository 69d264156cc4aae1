"""Who calls, and who may do what: identities, the table of rights, certificates, tokens, and TLS.

Every service demands a certificate of the platform's own authority from whoever connects. What a caller may
do is decided in one place, the interceptor, by one table (`rights`)."""
