"""OpenID Connect: an issuer's tokens identify callers. Needs the extra ``oidc``."""
