"""OpenID Connect: callers are known by the tokens of an issuer. Needs the extra ``oidc``."""
